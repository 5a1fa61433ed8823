"""How much of training's batches will be padding, worked out from the lengths of the pairs alone.

Training puts pairs in order of target bin and then of source length, cuts the row of them into updates, and an
update, sorted once more by whichever side leaves less padding, into pieces that go through the model together
(nmt/training/batches.py). The same is done here for some updates spread over an epoch. Near-ties, which training
shuffles each epoch, stay in order here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

TOKENS = 25_000
"""Source and as many target tokens of an update (5.1)."""
PIECE = 4096
"""Padded positions a side that go through the model together: a device's batch in the paper's code."""
UPDATES = 100
"""Updates looked at."""

Lengths = NDArray[np.int64]


class PairLengths:
    """How many pairs there are of each source and target length: memory follows the lengths, not the pairs."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, src: Lengths, tgt: Lengths) -> None:
        """Count pairs by their lengths in subwords, EOS included."""
        for code, count in zip(*np.unique(src << 32 | tgt, return_counts=True), strict=True):
            self._counts[int(code)] += int(count)

    def table(self) -> tuple[Lengths, Lengths, Lengths]:
        """Source lengths, target lengths, and the pairs that have both."""
        codes = np.array(list(self._counts), dtype=np.int64)
        return codes >> 32, codes & 0xFFFFFFFF, np.array(list(self._counts.values()), dtype=np.int64)


def expected_padding(lengths: PairLengths, uppers: Sequence[int], tokens: int = TOKENS, piece: int = PIECE) -> float:
    """The share of padding in the positions of both sides, over an epoch.

    `uppers` are the bins' longest target lengths; the rest is as `TOKENS` and `PIECE` say.
    """
    real = padded = 0
    for src, tgt in _updates(lengths, uppers, tokens):
        ways = [np.lexsort((src, np.searchsorted(uppers, tgt))), np.lexsort((src, tgt))]
        padded += min(_positions(src[order], tgt[order], piece) for order in ways)
        real += int(src.sum() + tgt.sum())
    return 1 - real / padded


def _updates(lengths: PairLengths, uppers: Sequence[int], tokens: int) -> Iterator[tuple[Lengths, Lengths]]:
    """The source and target lengths of the pairs of some updates."""
    src, tgt, pairs = lengths.table()
    # Cells are in the epoch's order, but for those of one bin and source length: their pairs are mixed there.
    bins = np.searchsorted(uppers, tgt)
    order = np.lexsort((tgt, src, bins))
    src, tgt, pairs, bins = src[order], tgt[order], pairs[order], bins[order]
    group = np.cumsum(np.concatenate([[0], (np.diff(src) != 0) | (np.diff(bins) != 0)]))
    ends = np.cumsum(np.bincount(group, (src + tgt) * pairs))
    count = max(1, round(float(ends[-1]) / (2 * tokens)))
    random = np.random.default_rng(0)
    for number in np.unique(np.linspace(0, count - 1, min(count, UPDATES)).astype(np.int64)):
        low, high = ends[-1] * number / count, ends[-1] * (number + 1) / count
        drawn = np.zeros_like(pairs)
        first, last = np.searchsorted(ends, low, "right"), np.searchsorted(ends, high, "left")
        for part in range(int(first), min(int(last), len(ends) - 1) + 1):
            cells = np.flatnonzero(group == part)
            start = ends[part - 1] if part else 0.0
            share = (min(high, ends[part]) - max(low, start)) / (ends[part] - start)
            drawn[cells] = random.multivariate_hypergeometric(
                pairs[cells], round(share * int(pairs[cells].sum())), method="marginals"
            )
        if drawn.any():
            yield np.repeat(src, drawn), np.repeat(tgt, drawn)


def _positions(src: Lengths, tgt: Lengths, piece: int) -> int:
    """The positions of both sides, padding included, of pairs cut into pieces in their order."""
    positions = count = longest_src = longest_tgt = 0
    for source, target in zip(src.tolist(), tgt.tolist(), strict=True):
        longest = max(longest_src, longest_tgt, source, target)
        if count and (count + 1) * longest > piece:
            positions += count * (longest_src + longest_tgt)
            count = longest_src = longest_tgt = 0
        count += 1
        longest_src, longest_tgt = max(longest_src, source), max(longest_tgt, target)
    return positions + count * (longest_src + longest_tgt)
