"""The merge operations of byte-pair encoding (Sennrich et al. 2016), learned and applied.

The results equal subword-nmt's to the byte. To learn, it examines all pairs of symbols after every merge; this module
examines only pairs that changed.
"""

import sys
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import pairwise

Pair = tuple[str, str]
Word = tuple[str, ...]

INSIDE = "\n"  # Marks the end of a piece that is not the last of its word. No line of text has this character.
_END = "</w>"  # the end of a word's last symbol, as in subword-nmt
_LEAST = 2  # the lowest frequency of a pair that is merged
_PART = 1048  # characters of a word that are merged together, as the time grows with their square; longer words are cut


@lru_cache(maxsize=1 << 18)
def _opposite(symbol: str) -> str:
    """Return a string that sorts in the opposite order; a symbol sorts after those that start with it."""
    return "".join([chr(sys.maxunicode - ord(char)) for char in symbol]) + chr(sys.maxunicode)


def _merged(word: Word, first: str, second: str, joined: str) -> Word:
    """Join every `first` with the `second` that follows it, from the left."""
    symbols: list[str] = []
    for symbol in word:
        if symbol == second and symbols and symbols[-1] == first:
            symbols[-1] = joined
        else:
            symbols.append(symbol)
    return tuple(symbols)


class _Words:
    """Words as symbols, with an index by pair, and a heap that finds the most frequent pair.

    Ties go to the pair that sorts last. The heap holds no pair that is rarer than `_LEAST`, as most are.
    """

    def __init__(self, counts: Mapping[str, int]) -> None:
        in_order = sorted(sorted(counts.items()), key=lambda item: -item[1])
        self.words: list[Word] = [(*word[:-1], word[-1] + _END) for word, _ in in_order]
        self.counts = array("q", [count for _, count in in_order])
        self.pairs: defaultdict[Pair, int] = defaultdict(int)  # the frequency of each pair; 0 once it is merged
        self._index: defaultdict[Pair, array[int]] = defaultdict(lambda: array("i"))
        """The words that have a pair, and some that no longer have it."""
        for number, word in enumerate(self.words):
            for pair in pairwise(word):
                self.pairs[pair] += self.counts[number]
                self._index[pair].append(number)
        self._order()

    def best(self) -> Pair | None:
        # Entries with outdated counts stay in the heap until they reach its top.
        while self._heap:
            frequency, _, _, pair = self._heap[0]
            if self.pairs[pair] == -frequency:
                return pair
            heappop(self._heap)
        return None

    def merge(self, pair: Pair) -> None:
        """Replace a pair by one symbol in all words; count as subword-nmt, which counts some repeated pairs twice."""
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
        update_pair_statistics(pair, changes, self.pairs, touched)
        self.pairs[pair] = 0
        for changed, words in touched.items():
            if joined in changed:
                self._index[changed].extend(words)
            if self.pairs[changed] >= _LEAST:
                heappush(self._heap, self._entry(changed))
        if len(self._heap) > self._room:
            self._order()

    def _order(self) -> None:
        self._heap = [self._entry(pair) for pair, count in self.pairs.items() if count >= _LEAST]
        heapify(self._heap)
        self._room = 2 * len(self._heap) + 1000

    def _entry(self, pair: Pair) -> tuple[int, str, str, Pair]:
        return -self.pairs[pair], _opposite(pair[0]), _opposite(pair[1]), pair


def learn_merges(counts: Mapping[str, int], merges: int) -> list[Pair]:
    """Return at most `merges` merge operations, in order; fewer if no pair that occurs twice remains.

    Equals subword-nmt's `learn_bpe` of the sorted words, but where a word holds `</w>` itself.
    """
    words = _Words(counts)
    learned: list[Pair] = []
    while len(learned) < merges and (best := words.best()):
        learned.append(best)
        words.merge(best)
    return learned


class Merges:
    """Merge operations in the order learned, applied to words."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        # The first rank of a pair that was learned twice counts, as in subword-nmt.
        self._ranks = {pair: rank for rank, pair in reversed(list(enumerate(pairs)))}
        self._parts = {first + second: (first, second) for first, second in self._ranks}

    def split(self, word: str) -> list[str]:
        """Return the pieces of a word, all but the last marked with `INSIDE`.

        All occurrences of the pair of the lowest rank are merged, from the left, until no pair has a rank.
        """
        symbols, merged, ranks = [*word[:-1], word[-1] + _END], list[str](), self._ranks
        for at in range(0, len(symbols), _PART):
            part = tuple(symbols[at : at + _PART])
            while len(part) > 1:
                best = min(pairwise(part), key=lambda pair: ranks.get(pair, sys.maxsize))
                if best not in ranks:
                    break
                part = _merged(part, *best, best[0] + best[1])
            merged += part
        return [*(piece + INSIDE for piece in merged[:-1]), merged[-1].removesuffix(_END)]

    def split_unknown(self, pieces: Iterable[str], known: Mapping[str, int]) -> list[str]:
        """Undo merges of the pieces of a word that are not `known`, down to single characters."""
        from subword_nmt import apply_bpe

        plain = tuple(piece.removesuffix(INSIDE) for piece in pieces)
        parts = list(apply_bpe.check_vocab_and_split(plain, self._parts, known, INSIDE))
        return [part + INSIDE for part in parts[:-1]] + parts[-1:]
