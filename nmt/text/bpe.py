"""The merge operations of byte-pair encoding (Sennrich et al. 2016), learned and applied.

The results equal subword-nmt's to the byte. It examines all pairs of symbols after every merge; this module examines
only pairs that changed.
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
"""Marks the end of a piece that is not the last of its word. No line of text has this character."""
_END = "</w>"
"""The end of a word's last symbol, as in subword-nmt."""
_LEAST = 2
"""The lowest frequency of a pair that is merged."""
_LONG = 50
"""Words of more characters than this are merged with a heap of pairs."""
_NEVER = sys.maxsize
"""The rank of a pair that is not merged."""


@lru_cache(maxsize=1 << 18)
def _opposite(symbol: str) -> str:
    """Return a string that sorts in the opposite order; a symbol sorts after those that start with it."""
    return "".join([chr(sys.maxunicode - ord(char)) for char in symbol]) + chr(sys.maxunicode)


class _Frequencies:
    """Frequencies of pairs, in a heap that finds the most frequent; ties go to the pair that sorts last."""

    def __init__(self, counts: defaultdict[Pair, int]) -> None:
        self.counts = counts
        self.changed: set[Pair] = set()
        """Pairs whose count was changed since the last `best`; whoever changes a count adds the pair."""
        self._order()

    def best(self) -> Pair | None:
        if len(self._heap) + len(self.changed) > 4 * len(self.counts) + 1000:
            self._order()
        for pair in self.changed:
            if pair in self.counts:
                heappush(self._heap, self._entry(pair))
        self.changed.clear()
        # Entries with outdated counts stay in the heap until they reach its top.
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
    """Join every `first` with the `second` that follows it, from the left."""
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
    """Words as symbols, with an index by pair."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        in_order = sorted(sorted(counts.items()), key=lambda item: -item[1])
        self.words: list[Word] = [(*word[:-1], word[-1] + _END) for word, _ in in_order]
        self.counts = array("q", [count for _, count in in_order])
        self.pairs: defaultdict[Pair, int] = defaultdict(int)
        """Frequencies before the first merge."""
        self._index: defaultdict[Pair, array[int]] = defaultdict(lambda: array("i"))
        """The words that have a pair, and some that no longer have it."""
        for number, word in enumerate(self.words):
            for pair in pairwise(word):
                self.pairs[pair] += self.counts[number]
                self._index[pair].append(number)

    def merge(self, pair: Pair, frequencies: _Frequencies) -> None:
        """Replace a pair by one symbol in all words.

        subword-nmt's own function changes the counts: where symbols repeat in a word, it counts some pairs twice.
        """
        from subword_nmt.learn_bpe import update_pair_statistics

        first, second = pair
        joined = first + second
        changes: list[tuple[int, Word, Word, int]] = []
        for number in self._index.pop(pair, ()):
            word = self.words[number]
            merged = _merged(word, first, second, joined)
            if len(merged) < len(word):
                self.words[number] = merged
                changes.append((number, merged, word, self.counts[number]))
        touched: defaultdict[Pair, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
        update_pair_statistics(pair, changes, frequencies.counts, touched)
        frequencies.counts[pair] = 0
        frequencies.changed.update(touched)
        for changed, words in touched.items():
            if joined in changed:
                self._index[changed].extend(words)


def learn_merges(counts: Mapping[str, int], merges: int) -> list[Pair]:
    """Return at most `merges` merge operations, in order; fewer if no pair that occurs twice remains.

    Equals subword-nmt's `learn_bpe` of the sorted words. Like it, sets aside pairs that are rarer than a threshold, and
    examines them again when no other pair reaches the threshold.
    """
    from subword_nmt.learn_bpe import prune_stats

    words = _Words(counts)
    learned: list[Pair] = []
    frequencies, rare = _Frequencies(words.pairs.copy()), words.pairs
    threshold = max(rare.values(), default=0) / 10
    for number in range(merges):
        best = frequencies.best()
        if best is None or (number and frequencies.counts[best] < threshold):
            prune_stats(frequencies.counts, rare, threshold)
            best = max(rare, key=lambda pair: (rare[pair], pair), default=None)
            threshold = rare[best] * number / (number + 10_000.0) if best else 0
            frequent = rare.copy()
            prune_stats(frequent, rare, threshold)
            frequencies = _Frequencies(frequent)
        if best is None or frequencies.counts[best] < _LEAST:
            break
        learned.append(best)
        words.merge(best, frequencies)
        if number % 100 == 0:
            prune_stats(frequencies.counts, rare, threshold)
    return learned


class Merges:
    """Merge operations in the order learned, applied to words."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        # The first rank of a pair that was learned twice counts, as in subword-nmt.
        self._ranks = {pair: rank for rank, pair in reversed(list(enumerate(pairs)))}
        self._pairs = pairs
        self._parts = {first + second: (first, second) for first, second in self._ranks}

    def split(self, word: str) -> list[str]:
        """Return the pieces of a word, all but the last marked with `INSIDE`."""
        pieces = self._symbols(word)
        pieces[-1] = pieces[-1].removesuffix(_END)
        return [piece + INSIDE for piece in pieces[:-1]] + pieces[-1:]

    def split_unknown(self, pieces: Iterable[str], known: Mapping[str, int]) -> list[str]:
        """Undo merges of the pieces of a word that are not `known`, down to single characters."""
        from subword_nmt import apply_bpe

        plain = tuple(piece.removesuffix(INSIDE) for piece in pieces)
        parts = list(apply_bpe.check_vocab_and_split(plain, self._parts, known, INSIDE))
        return [part + INSIDE for part in parts[:-1]] + parts[-1:]

    def _symbols(self, word: str) -> list[str]:
        """Merge all occurrences of the pair of the lowest rank, from the left, until no pair has a rank."""
        if len(word) > _LONG:
            return self._symbols_of_long(word)
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

    def _symbols_of_long(self, word: str) -> list[str]:
        """Do the same in time n log n, with the places of pairs in a heap; a merged symbol leaves an empty one."""
        symbols = [*word[:-1], word[-1] + _END]
        after, before = list(range(1, len(word) + 1)), list(range(-1, len(word) - 1))
        heap = [(rank, at) for at, pair in enumerate(pairwise(symbols)) if (rank := self._ranks.get(pair)) is not None]
        heapify(heap)
        while heap:
            rank, joined = heap[0][0], list[int]()
            while heap and heap[0][0] == rank:
                at = heappop(heap)[1]
                # Its symbols may have been merged with others.
                if (end := after[at]) < len(word) and (symbols[at], symbols[end]) == self._pairs[rank]:
                    symbols[at], symbols[end] = symbols[at] + symbols[end], ""
                    after[at] = after[end]
                    if after[at] < len(word):
                        before[after[at]] = at
                    joined.append(at)
            # All of a rank are merged before any pair that this made.
            for at in {place for left in joined for place in (before[left], left)}:
                if at >= 0 and (end := after[at]) < len(word):
                    new = self._ranks.get((symbols[at], symbols[end]))
                    if new is not None:
                        heappush(heap, (new, at))
        return [symbol for symbol in symbols if symbol]
