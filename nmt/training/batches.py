"""Binned corpus to batches of about 25,000 source and 25,000 target tokens; section 5.1.

What an update trains on is a function of (corpus, seed, update) alone, so a resumed run needs no data state. How its
pairs are cut depends on the number of shards, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.common.shapes import Int
from nmt.flops import LengthSums
from nmt.ids import BOS, PAD
from nmt.packing import Packed, pack

AHEAD = 4  # number of updates prepared in advance
BLOCKS = 8  # blocks of similar lengths in an update, if it has no more shards than this
PART = 2**20  # pairs of an epoch whose lengths are looked up together


class Corpus:
    """Pairs of subword ids in memory-mapped Arrow files, whose pages the operating system caches."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files: list[tuple[NDArray[np.int32], NDArray[np.integer]]] = []
        """Each file's bytes twice: as numbers of the offsets' type, and as ids."""
        starts, file_starts, self.longest = [0], [0], 0
        places, offsets = list[list[tuple[int, int]]](), list[list[NDArray[np.int32]]]()
        for path in files:
            mapped = pa.memory_map(str(path)).read_buffer()
            reader = pa.ipc.open_file(mapped)
            ids = np.dtype(str(reader.schema.field("src").type.value_type))  # Not `to_pandas_dtype`: it imports pandas.
            numbers = np.frombuffer(mapped, np.int32, mapped.size // 4)
            self._files.append((numbers, np.frombuffer(mapped, ids, mapped.size // ids.itemsize)))
            for batch in filter(len, map(reader.get_batch, range(reader.num_record_batches))):
                places.append([_places(batch.column(name), mapped.address) for name in ("src", "tgt")])
                offsets.append([numbers[first : first + len(batch) + 1] for first, _ in places[-1]])
                self.longest = max(self.longest, *(int(np.diff(side).max()) for side in offsets[-1]))
                starts.append(starts[-1] + len(batch))
            file_starts.append(starts[-1])
        self._starts, self.file_starts = np.array(starts), np.array(file_starts)
        self._places = np.array(places).reshape(-1, 2, 2)
        """Of each record batch and side: where in its file offsets and ids begin, [batches, 2, 2]."""
        # Only these arrays grow with the corpus: 2 bytes per side, or 4 if a sentence has 65,536 subwords or more.
        dtype = np.uint16 if self.longest < 2**16 else np.uint32
        self.src_lengths: NDArray[np.unsignedinteger] = np.empty(len(self), dtype)
        """Subwords, EOS included; also of the targets."""
        self.tgt_lengths: NDArray[np.unsignedinteger] = np.empty(len(self), dtype)
        for (first, last), (src, tgt) in zip(pairwise(starts), offsets, strict=True):
            self.src_lengths[first:last], self.tgt_lengths[first:last] = np.diff(src), np.diff(tgt)
        self.tokens = int(self.src_lengths.sum(dtype=np.int64) + self.tgt_lengths.sum(dtype=np.int64))
        """Subwords of both sides."""

    def __len__(self) -> int:
        return int(self._starts[-1])

    def padded(self, side: int, pairs: NDArray[np.integer]) -> Int[np.ndarray, "pairs length"]:
        """Return the ids of the pairs' sources (`side` 0) or targets (1), padded with PAD to the longest.

        The numpy calls handle all pairs of a file at once: a loop over pairs or record batches would hold Python's
        lock, which the thread that starts the GPU's kernels needs.
        """
        lengths = (self.src_lengths, self.tgt_lengths)[side][pairs]
        columns = np.arange(lengths.max())
        padded = np.full((len(pairs), len(columns)), PAD, dtype=np.int64)
        batches = np.searchsorted(self._starts, pairs, side="right") - 1
        offset_places, id_places = self._places[batches, side].T
        offset_places = offset_places + pairs - self._starts[batches]
        files = np.searchsorted(self.file_starts, pairs, side="right") - 1
        for file in np.unique(files):
            rows = np.flatnonzero(files == file)
            numbers, ids = self._files[file]
            first = id_places[rows] + numbers[offset_places[rows]]
            row, column = np.nonzero(columns < lengths[rows, None])
            padded[rows[row], column] = ids[first[row] + column]
        return padded

    def sums(self, pairs: NDArray[np.integer]) -> LengthSums:
        """Return the sums of lengths that determine the cost of training on `pairs`."""
        src, tgt = self.src_lengths[pairs].astype(np.int64), self.tgt_lengths[pairs].astype(np.int64)
        sums = (src.sum(), tgt.sum(), (src**2).sum(), (tgt**2).sum(), (src * tgt).sum())
        return LengthSums(len(pairs), *map(int, sums))


def _places(column: pa.ListArray, start: int) -> tuple[int, int]:
    """Return where a column's offsets and ids begin, counted in their own sizes from the address `start`."""
    values = column.values
    return (column.buffers()[1].address - start) // 4, (values.buffers()[1].address - start) // values.type.byte_width


def train_files(folder: Path) -> list[Path]:
    """Return the length bins of a binned corpus, the shortest first."""
    return sorted(folder.glob("train.*.arrow"))


@dataclass(frozen=True)
class Batch:
    """Pairs that go through the model together, in blocks of similar lengths."""

    src: Packed
    tgt_in: Packed  # BOS, then the target without its EOS
    labels: Int[Tensor, "tokens"]  # of the first rows of `tgt_in`; the others are padding

    def to(self, device: torch.device) -> Batch:
        """Copy to a device without blocking the host."""
        if device.type == "cpu":
            return self
        labels = self.labels.pin_memory().to(device, non_blocking=True)
        return Batch(self.src.to(device), self.tgt_in.to(device), labels)


def make_batch(corpus: Corpus, blocks: Sequence[NDArray[np.integer]], heads: int = 1) -> Batch:
    """Make a batch of blocks of pairs, which attention of so many heads pads to their longest."""
    src, tgt_in, labels = [], [], []
    for pairs in blocks:
        tgt = corpus.padded(1, pairs)
        shifted = np.full_like(tgt, PAD)
        shifted[:, 0] = BOS
        shifted[:, 1:] = np.where(tgt[:, 1:] == PAD, PAD, tgt[:, :-1])
        src.append(corpus.padded(0, pairs))
        tgt_in.append(shifted)
        labels.append(tgt[tgt != PAD])
    src_packed, tgt_packed = (pack(side, heads, rounded=True) for side in (src, tgt_in))
    return Batch(src_packed, tgt_packed, torch.from_numpy(np.concatenate(labels)))


Cut = tuple[int, list[NDArray[np.integer]]]
"""How many positions all parts have, each padded to its longest pair, and the parts, of which some may be empty."""


def cut(corpus: Corpus, pairs: NDArray[np.integer], count: int) -> Cut:
    """Cut pairs into `count` parts of about equally many subwords, by their lengths alone.

    Of two orders, by target bin and then by source length, and by target length and then by source length, the one
    with less padding is chosen.
    """
    keys: list[NDArray[np.integer]] = [corpus.tgt_lengths[pairs]]
    if len(corpus.file_starts) > 2:  # A corpus of one file has no bins.
        keys.insert(0, np.searchsorted(corpus.file_starts, pairs, side="right"))
    orders = [pairs[np.lexsort((corpus.src_lengths[pairs], key))] for key in keys]
    return min((_cut_in_order(corpus, order, count) for order in orders), key=itemgetter(0))


def _cut_in_order(corpus: Corpus, order: NDArray[np.integer], count: int) -> Cut:
    src, tgt = (lengths[order].astype(np.int64) for lengths in (corpus.src_lengths, corpus.tgt_lengths))
    sizes = src + tgt
    ends = np.cumsum(sizes)
    # A pair belongs to the part in which its middle lies. All numbers are integers, so that no rounding decides.
    starts = np.searchsorted((2 * ends - sizes) * count, 2 * ends[-1] * np.arange(1, count))
    pairs = np.diff([0, *starts, len(order)])
    first = np.concatenate(([0], starts))[pairs > 0]
    widths = np.maximum.reduceat(src, first) + np.maximum.reduceat(tgt, first)
    return int((widths * pairs[pairs > 0]).sum()), np.split(order, starts)


def plan_epoch(corpus: Corpus, seed: int, epoch: int, tokens: int) -> list[NDArray[np.int32]]:
    """Return the pairs of each update of an epoch: every pair once, in random order, cut into updates of equal size.

    An update has pairs of all lengths: it learns more than from as many tokens of one length.
    """
    order = np.arange(len(corpus), dtype=np.int32)
    np.random.default_rng((seed, epoch)).shuffle(order)
    count = updates_an_epoch(corpus, tokens)
    cut = np.arange(1, count)
    bounds = corpus.tokens * cut // count
    cuts, done = np.zeros_like(cut), 0
    # In parts, because the temporary arrays take several times the memory of the result.
    for first in range(0, len(order), PART):
        part = order[first : first + PART]
        lengths = corpus.src_lengths[part].astype(np.int64) + corpus.tgt_lengths[part]
        cuts += np.searchsorted(done + np.cumsum(lengths), bounds, side="right")
        done += int(lengths.sum())
    # A pair longer than an update's share must not leave the next update empty.
    cuts = np.maximum.accumulate(np.maximum(cuts, 1) - cut) + cut
    return np.split(order, np.minimum(cuts, len(corpus) - count + cut))


def updates_an_epoch(corpus: Corpus, tokens: int) -> int:
    """Return how many updates of about `tokens` source and `tokens` target tokens an epoch has, at least 1."""
    return min(len(corpus), max(1, round(corpus.tokens / (2 * tokens))))


@dataclass(frozen=True)
class Update:
    """One rank's shards of an update, and the whole update's size."""

    number: int
    first: int  # the number of this rank's first shard, counted from 0
    shards: list[Batch | None]  # an empty shard is None
    sums: LengthSums  # of all ranks' pairs
    padded: int
    """Positions of all ranks' blocks, source and target, padded to their longest sentence. FlashAttention pads none."""


def updates(
    corpus: Corpus, seed: int, tokens: int, shards: int, rank: int, size: int, numbers: range, heads: int = 1
) -> Iterator[Update]:
    """Yield this rank's share of updates, counted from 1, over as many epochs as needed.

    Every update is cut into `shards`, of which each of `size` ranks takes equally many consecutive ones. Some may be
    None: an update may have fewer pairs than shards.
    """
    of_rank = slice(rank * shards // size, (rank + 1) * shards // size)
    count = updates_an_epoch(corpus, tokens)
    for epoch, its_numbers in groupby(numbers, lambda number: (number - 1) // count):
        plan = plan_epoch(corpus, seed, epoch, tokens)
        for number in its_numbers:
            pairs = plan[(number - 1) % count]
            padded, divided = cut(corpus, pairs, max(shards, BLOCKS))
            blocks_a_shard = max(1, BLOCKS // shards)
            parts = [
                [part for part in divided[i * blocks_a_shard : (i + 1) * blocks_a_shard] if len(part)]
                for i in range(shards)
            ]
            batches = [make_batch(corpus, blocks, heads) if blocks else None for blocks in parts[of_rank]]
            yield Update(number, of_rank.start, batches, corpus.sums(pairs), padded)
        del plan, pairs  # The next plan is made after the memory of this one is free.


def ahead(items: Iterator[Update]) -> Iterator[Update]:
    """Yield the items, which a thread prepares in advance; raise the thread's errors here."""
    with ThreadPoolExecutor(1, "batches") as thread:
        ready = deque(thread.submit(next, items, None) for _ in range(AHEAD + 1))
        try:
            while (item := ready.popleft().result()) is not None:
                ready.append(thread.submit(next, items, None))
                yield item
        finally:
            thread.shutdown(cancel_futures=True)
