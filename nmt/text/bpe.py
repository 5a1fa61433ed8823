"""The merge operations of byte-pair encoding (Sennrich et al. 2016), learned and applied as subword-nmt does.

Where subword-nmt looks at all pairs of symbols after every merge, and at all pairs of a word, only those that changed
are looked at here. The results are its own, to the byte.
"""

from __future__ import annotations

import sys
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import pairwise

Pair = tuple[str, str]
Word = tuple[str, ...]

INSIDE = "\n"
"""What ends a piece that another follows: no text holds it, so no piece of text can be mistaken for it."""
_END = "</w>"
"""What subword-nmt ends a word's last symbol with."""
_LEAST = 2
"""Pairs that occur less often are not worth a merge."""
_NEVER = sys.maxsize
"""The rank of a pair that is not merged."""


@lru_cache(maxsize=1 << 18)
def _opposite(symbol: str) -> str:
    """Sorts as the symbol does, in the opposite order; by its end it comes after those that it begins."""
    return "".join([chr(sys.maxunicode - ord(char)) for char in symbol]) + chr(sys.maxunicode)


class _Frequencies:
    """How often pairs occur, and the most frequent of them; of several the last in order of their symbols."""

    def __init__(self, counts: Mapping[Pair, int]) -> None:
        self.counts: defaultdict[Pair, int] = defaultdict(int, counts)
        self.changed: set[Pair] = set()
        """To be told of by who changes counts; not of those taken out."""
        self._order()

    def best(self) -> Pair | None:
        """The most frequent pair; None where there is no pair at all."""
        if len(self._heap) + len(self.changed) > 4 * len(self.counts) + 1000:
            self._order()
        for pair in self.changed:
            if pair in self.counts:
                heappush(self._heap, self._entry(pair))
        self.changed.clear()
        # Entries stay when counts change, and are passed over once they come to the top.
        while self._heap:
            frequency, _, _, pair = self._heap[0]
            if self.counts.get(pair) == -frequency:
                return pair
            heappop(self._heap)
        return None

    def _order(self) -> None:
        self._heap = [self._entry(pair) for pair in self.counts]
        heapify(self._heap)
        self.changed.clear()

    def _entry(self, pair: Pair) -> tuple[int, str, str, Pair]:
        return -self.counts[pair], _opposite(pair[0]), _opposite(pair[1]), pair


def _merged(word: Word, first: str, second: str, joined: str) -> Word:
    """A word's symbols with every `first` that `second` follows joined to it, from the left."""
    symbols: list[str] = []
    start, last = 0, len(word) - 1
    while first in word[start:last]:
        at = word.index(first, start)
        if word[at + 1] == second:
            symbols += word[start:at]
            symbols.append(joined)
            start = at + 2
        else:
            symbols += word[start : at + 1]
            start = at + 1
    return (*symbols, *word[start:])


class _Words:
    """Words as symbols, and where each pair of symbols stands."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        in_order = sorted(sorted(counts.items()), key=lambda item: -item[1])
        self.words: list[Word] = [(*word[:-1], word[-1] + _END) for word, _ in in_order]
        self.counts = array("q", [count for _, count in in_order])
        self.pairs: defaultdict[Pair, int] = defaultdict(int)
        """How often each pair occurs, before the first merge."""
        self._places: defaultdict[Pair, array[int]] = defaultdict(lambda: array("i"))
        """The words that hold a pair, and some that no longer do."""
        for number, word in enumerate(self.words):
            for pair in pairwise(word):
                self.pairs[pair] += self.counts[number]
                self._places[pair].append(number)

    def merge(self, pair: Pair, frequencies: _Frequencies) -> None:
        """Join a pair wherever it stands, and correct the frequencies of its neighbours."""
        first, second = pair
        joined = first + second
        for number in self._places.pop(pair, ()):
            word = self.words[number]
            merged = _merged(word, first, second, joined)
            if len(merged) == len(word):
                continue
            self.words[number] = merged
            if len(merged) == len(word) - 1 and joined not in word and first != second:
                self._correct(number, merged, pair, frequencies)
            else:
                self._correct_as_subword_nmt(number, word, pair, frequencies)

    def _correct(self, number: int, merged: Word, pair: Pair, frequencies: _Frequencies) -> None:
        """For a pair that stood once in the word."""
        joined = pair[0] + pair[1]
        at, count = merged.index(joined), self.counts[number]
        neighbours = []
        if at:
            neighbours.append(((merged[at - 1], pair[0]), (merged[at - 1], joined)))
        if at + 1 < len(merged):
            neighbours.append(((pair[1], merged[at + 1]), (joined, merged[at + 1])))
        for old, new in neighbours:
            frequencies.counts[old] -= count
            frequencies.counts[new] += count
            frequencies.changed.add(old)
            frequencies.changed.add(new)
            self._places[new].append(number)

    def _correct_as_subword_nmt(self, number: int, word: Word, pair: Pair, frequencies: _Frequencies) -> None:
        """For symbols that repeat in a word. Some pairs are counted twice then, and merges follow from that."""
        from subword_nmt.learn_bpe import update_pair_statistics

        merged, joined = self.words[number], pair[0] + pair[1]
        change = (number, merged, word, self.counts[number])
        update_pair_statistics(pair, [change], frequencies.counts, defaultdict(lambda: defaultdict(int)))
        frequencies.changed.update(pairwise(word))
        for new in pairwise(merged):
            frequencies.changed.add(new)
            if joined in new:
                self._places[new].append(number)


def _frequent(aside: dict[Pair, int], threshold: float) -> dict[Pair, int]:
    """The pairs from `threshold` on; without a copy of all, but with what subword-nmt does to `aside` through one."""
    for pair, frequency in aside.items():
        if frequency < min(0, threshold):
            aside[pair] += frequency
    return {pair: frequency for pair, frequency in aside.items() if frequency >= threshold}


def learn_merges(counts: Mapping[str, int], merges: int) -> list[Pair]:
    """At most `merges` merge operations, in order; fewer where no pair is left that occurs twice.

    What subword-nmt's `learn_bpe` gives for the words in sorted order, its economies included: pairs rarer than a
    threshold are set aside, and looked at again when no other reaches it.
    """
    from subword_nmt.learn_bpe import prune_stats

    words = _Words(counts)
    learned: list[Pair] = []
    frequencies, aside = _Frequencies(words.pairs), words.pairs
    threshold = max(aside.values(), default=0) / 10
    for number in range(merges):
        best = frequencies.best()
        if best is None or (number and frequencies.counts[best] < threshold):
            prune_stats(frequencies.counts, aside, threshold)
            best = max(aside, key=lambda pair: (aside[pair], pair), default=None)
            threshold = aside[best] * number / (number + 10_000.0) if best else 0
            frequencies = _Frequencies(_frequent(aside, threshold))
        if best is None or frequencies.counts[best] < _LEAST:
            break
        learned.append(best)
        words.merge(best, frequencies)
        frequencies.counts[best] = 0
        frequencies.changed.add(best)
        if number % 100 == 0:
            prune_stats(frequencies.counts, aside, threshold)
    return learned


class Merges:
    """Merge operations, applied to words."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        """`pairs` in the order learned."""
        # The first of a pair that was learned twice counts, as in subword-nmt.
        self._ranks = {pair: rank for rank, pair in reversed(list(enumerate(pairs)))}
        self._pairs = pairs
        self._parts = {first + second: (first, second) for first, second in self._ranks}

    def split(self, word: str) -> list[str]:
        """The pieces of a word, each that another follows marked with `INSIDE`."""
        pieces = self._symbols(word)
        pieces[-1] = pieces[-1].removesuffix(_END)
        return [piece + INSIDE for piece in pieces[:-1]] + pieces[-1:]

    def take_apart(self, pieces: Iterable[str], known: Mapping[str, int]) -> list[str]:
        """The pieces of a word with those that are not `known` taken apart; single characters remain."""
        from subword_nmt import apply_bpe

        plain = tuple(piece.removesuffix(INSIDE) for piece in pieces)
        parts = list(apply_bpe.check_vocab_and_split(plain, self._parts, known, INSIDE))
        return [part + INSIDE for part in parts[:-1]] + parts[-1:]

    def _symbols(self, word: str) -> list[str]:
        """Merge the pair of the lowest rank, all its occurrences from the left, until no pair has one."""
        symbols = [*word[:-1], word[-1] + _END]
        rank_of = self._ranks.get
        ranks = [rank_of(pair, _NEVER) for pair in pairwise(symbols)]
        while ranks and (rank := min(ranks)) != _NEVER:
            first, second = self._pairs[rank]
            if ranks.count(rank) > 1:
                symbols = list(_merged(tuple(symbols), first, second, first + second))
                ranks = [rank_of(pair, _NEVER) for pair in pairwise(symbols)]
                continue
            at = ranks.index(rank)
            joined = first + second
            symbols[at : at + 2] = [joined]
            del ranks[at]
            if at:
                ranks[at - 1] = rank_of((symbols[at - 1], joined), _NEVER)
            if at < len(ranks):
                ranks[at] = rank_of((joined, symbols[at + 1]), _NEVER)
        return symbols
