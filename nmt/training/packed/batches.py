"""Packed batches: the subwords of all sentences one after the other, padded only at the end, up to a fixed shape.

Everything but attention treats each position by itself, so it needs no sentences side by side. For attention the
positions move into rows, each of which holds one sentence or several short ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.common.shapes import Int
from nmt.config import BOS, PAD
from nmt.training.batches import Corpus, EpochPlan, Update, own_shards, pairs_of_updates, updates_an_epoch
from nmt.training.packed.shapes import Arrangement, Shape, arrange, choose_shapes, smallest


@dataclass(frozen=True)
class Side:
    """The sources or the targets of a packed batch: `tokens` positions in the stream, `rows` of `row_length` places."""

    ids: Int[Tensor, "tokens"]
    """Of the target: BOS, then the target without its EOS."""
    positions: Int[Tensor, "tokens"]
    """In the sentence, counted from 0."""
    place_of_token: Int[Tensor, "tokens"]
    """The place of each position of the stream in the flattened rows. Padding has a free place."""
    token_of_place: Int[Tensor, "places"]
    """The position in the stream of each place in the flattened rows. Free places have the last, which is padding."""
    sentences: Int[Tensor, "rows row_length"]
    """The number of the sentence in its row, counted from 1; 0 in free places."""

    def copied(self) -> Side:
        """Return the same in memory of its own: for tensors at other offsets, a compiler makes other code."""
        return Side(*(getattr(self, field.name).clone() for field in fields(self)))


@dataclass(frozen=True)
class PackedBatch:
    """Pairs that go through the model together, without padding between them."""

    shape: Shape
    common: bool
    """Whether the shape is one of the training's few."""
    flat: Int[Tensor, "size"]
    """All of the batch in one tensor, so that it is copied to a device at once."""

    @staticmethod
    def sizes(shape: Shape) -> list[int]:
        """Return the sizes of the parts of `flat`: five of each side, the labels, and the update's target tokens."""
        places = shape.rows * shape.row_length
        sides = [[tokens, tokens, tokens, places, places] for tokens in (shape.src, shape.tgt)]
        return [*sides[0], *sides[1], shape.tgt, 1]

    @cached_property
    def _parts(self) -> tuple[Tensor, ...]:
        parts: tuple[Tensor, ...] = self.flat.split(self.sizes(self.shape))
        return parts

    def _side(self, first: int) -> Side:
        ids, positions, place_of_token, token_of_place, sentences = self._parts[first : first + 5]
        return Side(
            ids, positions, place_of_token, token_of_place, sentences.view(self.shape.rows, self.shape.row_length)
        )

    @property
    def src(self) -> Side:
        """The sources."""
        return self._side(0)

    @property
    def tgt(self) -> Side:
        """The decoder's input."""
        return self._side(5)

    @property
    def labels(self) -> Int[Tensor, "tokens"]:
        """The targets, PAD where there is none."""
        return self._parts[10]

    @property
    def update_tokens(self) -> Int[Tensor, "1"]:
        """Target tokens of the whole update."""
        return self._parts[11]

    def size_text(self) -> str:
        """Return the size for a message."""
        return f"{self.shape.src:,} source and {self.shape.tgt:,} target subwords"

    def to(self, device: torch.device) -> PackedBatch:
        """Copy to a device without blocking the host."""
        if device.type == "cpu":
            return self
        return PackedBatch(self.shape, self.common, self.flat.pin_memory().to(device, non_blocking=True))


class PackedPlan:
    """The updates of a training as packed batches of few shapes: a function of corpus, seed, tokens and shards."""

    def __init__(self, corpus: Corpus, seed: int, tokens: int, shards: int) -> None:
        """Choose the shapes from the updates of the first epoch."""
        self._corpus, self._seed, self._tokens, self._shards = corpus, seed, tokens, shards
        epoch, count = EpochPlan(corpus, seed, 0, tokens), updates_an_epoch(corpus, tokens)
        self.shapes = choose_shapes([self.arranged(epoch.pairs(index)).needed for index in range(count)])

    def arranged(self, pairs: NDArray[np.integer]) -> Arrangement:
        """Return which shard and row each pair of an update belongs to."""
        return arrange(self._corpus.src_lengths[pairs], self._corpus.tgt_lengths[pairs], self._shards)

    def updates(self, rank: int, size: int, first: int, last: int) -> Iterator[Update[PackedBatch]]:
        """Yield a rank's share of the updates `first` to `last`: the pairs of `nmt.training.batches.updates`.

        An update that fits into none of the shapes has one of its own.
        """
        own = own_shards(self._shards, rank, size)
        plan = pairs_of_updates(self._corpus, self._seed, self._tokens, range(first, last + 1))
        for number, pairs in plan:
            arrangement = self.arranged(pairs)
            shape = smallest(self.shapes, arrangement.needed)
            sums = self._corpus.sums(pairs)
            flat = pack(self._corpus, pairs, arrangement, shape, own, sums.target)
            batches = [PackedBatch(shape, shape in self.shapes, batch) for batch in flat]
            yield Update(number, own.start, batches, sums, self._shards * (shape.src + shape.tgt))


def pack(
    corpus: Corpus, pairs: NDArray[np.integer], arrangement: Arrangement, shape: Shape, own: range, tokens: int
) -> Int[Tensor, "shards size"]:
    """Return `flat` of the shards `own` of an update whose targets have `tokens` subwords."""
    order = np.lexsort((arrangement.row, arrangement.shard))
    order = order[(arrangement.shard[order] >= own.start) & (arrangement.shard[order] < own.stop)]
    pairs, shard, row = pairs[order], arrangement.shard[order] - own.start, arrangement.row[order]
    flat = np.zeros((len(own), sum(PackedBatch.sizes(shape))), dtype=np.int64)
    flat[:, -1] = tokens
    parts = np.split(flat, np.cumsum(PackedBatch.sizes(shape))[:-1], axis=1)
    _fill(corpus, 0, pairs, shard, row, shape, parts[:5])
    _fill(corpus, 1, pairs, shard, row, shape, parts[5:11])
    return torch.from_numpy(flat)


def _fill(
    corpus: Corpus,
    side: int,
    pairs: NDArray[np.integer],
    shard: NDArray[np.int64],
    row: NDArray[np.int64],
    shape: Shape,
    parts: list[NDArray[np.int64]],
) -> None:
    """Write one side of pairs, sorted by shard and row, into its parts of `flat`; of the target also the labels.

    The numpy calls handle all shards at once: a loop over pairs would hold Python's lock, which the thread that starts
    the GPU's kernels needs.
    """
    ids, positions, place_of_token, token_of_place, sentences, *labels = parts
    lengths = (corpus.src_lengths, corpus.tgt_lengths)[side][pairs].astype(np.int64)
    padded = corpus.padded(side, pairs) if len(pairs) else np.empty((0, 0), dtype=np.int64)
    real = padded[padded != PAD]
    within = np.arange(len(real)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    stream = within + np.repeat(_starts(lengths, shard), lengths)
    place = within + np.repeat(row * shape.row_length + _starts(lengths, shard * shape.rows + row), lengths)
    batch = np.repeat(shard, lengths)
    if labels:
        labels[0][batch, stream] = real
        real = np.where(within == 0, BOS, np.concatenate(([BOS], real[:-1])))
    ids[batch, stream] = real
    positions[batch, stream] = within
    sentences[batch, place] = np.repeat(1 + _starts(np.ones_like(lengths), shard * shape.rows + row), lengths)
    token_of_place[:] = ids.shape[1] - 1
    token_of_place[batch, place] = stream
    place_of_token[:] = (sentences == 0).argmax(1)[:, None]
    place_of_token[batch, stream] = place


def _starts(lengths: NDArray[np.int64], group: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sum of the lengths before each element in its group. Elements of a group are neighbours."""
    before = np.cumsum(lengths) - lengths
    first = np.flatnonzero(np.diff(group, prepend=-1))
    return before - np.repeat(before[first], np.diff(first, append=len(group)))
