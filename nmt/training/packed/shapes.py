"""The few shapes that the packed batches of a training have, chosen from the lengths of its corpus.

A CUDA graph repeats operations on tensors of one shape. Batches of a corpus have thousands of shapes, so each is filled
up to one of at most SHAPES.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from nmt.common.shapes import Int

SHAPES = 12
"""At most this many shapes: each is recorded once, which takes memory and some seconds."""
SHORTEST_ROW = 64
"""Positions of attention's rows. Pairs longer than this have rows of twice, four times, ... as many."""
ROW_COST = 0.1
"""An estimate of what a position of attention's rows costs, relative to one of the streams, which go through every
matrix product with weights."""
ALIGNMENT = 16
"""Streams have a multiple of this many positions, or of the power of two that is at most a hundredth of them."""
GROUPS = 150
"""At most this many groups of neighbours a length of rows, between which runs are cut."""


@dataclass(frozen=True)
class Shape:
    """The size of a packed batch. Every number is as large as the batch needs, or larger."""

    src: int
    """Subwords of all sources, one after the other, and at least one position of padding."""
    tgt: int
    """As `src`, of the targets."""
    rows: int
    """Rows of attention. At least one of their positions is free on each side."""
    row_length: int
    """Positions of a row, source and target alike."""

    def holds(self, other: Shape) -> bool:
        """Return whether a batch of the other shape fits into this one."""
        return all(own >= others for own, others in zip(astuple(self), astuple(other), strict=True))

    @property
    def cost(self) -> float:
        """An estimate of the time of a batch, in positions of a stream."""
        return self.src + self.tgt + ROW_COST * 2 * self.rows * self.row_length


@dataclass(frozen=True)
class Arrangement:
    """Where each pair of an update goes."""

    shard: Int[np.ndarray, "pairs"]
    row: Int[np.ndarray, "pairs"]
    """The pair's row of attention in its shard."""
    needed: Shape
    """The smallest shape that every shard fits into."""


def arrange(src: NDArray[np.integer], tgt: NDArray[np.integer], shards: int) -> Arrangement:
    """Deal pairs with these lengths, [pairs], to shards of about equal size, and the pairs of a shard to rows.

    Cards are dealt in the order of falling length, every other round backwards. A function of the lengths alone.
    """
    src, tgt = src.astype(np.int64), tgt.astype(np.int64)
    order = np.lexsort((src, src + tgt))[::-1]
    shard, row = np.empty_like(order), np.empty_like(order)
    index = np.arange(len(order))
    shard[order] = _deal(index, shards)
    largest = [int(np.bincount(shard, lengths).max()) for lengths in (src, tgt)]
    positions = SHORTEST_ROW
    while positions < max(src.max(), tgt.max()):
        positions *= 2
    most = -(-len(order) // shards)
    for together in range(max(1, positions * most // max(largest)), 0, -1):
        rows = -(-most // together)
        row[order] = _deal(index // shards, rows)
        place = shard * rows + row
        if max(np.bincount(place, lengths).max() for lengths in (src, tgt)) <= positions:
            break
    # A free position in the rows, and one in each stream: padding is moved between them.
    rows = max(rows, max(largest) // positions + 1)
    return Arrangement(shard, row, Shape(largest[0] + 1, largest[1] + 1, rows, positions))


def _deal(index: NDArray[np.int64], hands: int) -> NDArray[np.int64]:
    """Return the hand of each card, every other round backwards."""
    turn, place = np.divmod(index, hands)
    return np.where(turn % 2 == 1, hands - 1 - place, place)


def choose_shapes(needed: Sequence[Shape], count: int = SHAPES) -> list[Shape]:
    """Return at most `count` shapes, so that each needed shape fits into one of them and their costs are least in all.

    The needed shapes are sorted by the length of their rows and by the sources' share of the subwords, which decides
    most: an update has a fixed number of subwords. Of all ways to cut them into `count` runs, the cheapest is found by
    dynamic programming. Each run has its largest sizes as its shape, and a little more, because other epochs have
    other updates.
    """
    sizes = np.array([astuple(shape) for shape in needed])
    sizes = sizes[np.lexsort((sizes[:, 0] / sizes[:, :2].sum(1), sizes[:, 3]))]
    changes = np.flatnonzero(np.diff(sizes[:, 3])) + 1
    groups = [group for part in np.split(sizes, changes) for group in np.array_split(part, min(len(part), GROUPS))]
    uses, largest = np.array([len(group) for group in groups]), np.array([group.max(0) for group in groups])
    costs = np.full((len(groups), len(groups) + 1), np.inf)
    """[first, end]: the cost of all batches of these groups in one shape."""
    for first in range(len(groups)):
        src, tgt, rows, row_length = np.maximum.accumulate(largest[first:]).T
        costs[first, first + 1 :] = np.cumsum(uses[first:]) * (src + tgt + ROW_COST * 2 * rows * row_length)
    least = np.full(len(groups) + 1, np.inf)
    least[0] = 0.0
    starts = []
    for _ in range(min(count, len(groups))):
        through = least[:-1, None] + costs
        starts.append(through.argmin(0))
        least = through.min(0)
    end, found = len(groups), []
    for start in reversed(starts):
        src, tgt, rows, row_length = map(int, largest[start[end] : end].max(0))
        found.append(Shape(_rounded_up(src), _rounded_up(tgt), rows + 1, row_length))
        end = int(start[end])
    return list(dict.fromkeys(reversed(found)))


def _rounded_up(positions: int) -> int:
    multiple = max(ALIGNMENT, 1 << max(0, (positions // 100).bit_length() - 1))
    return -(-positions // multiple) * multiple


def smallest(shapes: Sequence[Shape], needed: Shape) -> Shape:
    """Return the cheapest of the shapes that holds the needed one; the needed one itself if none does."""
    return min((shape for shape in shapes if shape.holds(needed)), key=lambda shape: shape.cost, default=needed)
