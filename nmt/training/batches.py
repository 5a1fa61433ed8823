"""Binned corpus to batches of about 25,000 source and 25,000 target tokens; section 5.1.

What an update trains on is a function of (corpus, seed, update) alone: the same pairs whatever the number of
ranks and the size of micro-batches, so a resumed run needs no data state.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.common.shapes import Int
from nmt.config import BOS, PAD, InputError, ModelSettings
from nmt.flops import LengthSums

_Ids = tuple[NDArray[np.int32], NDArray[np.unsignedinteger]]
"""Offsets of sentences, and the ids of all sentences one after the other."""
AHEAD = 4
"""Number of updates prepared in advance."""


class Corpus:
    """Pairs of subword ids in memory-mapped Arrow files, whose pages the operating system caches."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._sides: list[tuple[_Ids, _Ids]] = []
        """Source and target of each record batch."""
        self._lines: list[NDArray[np.int64]] = []
        starts, file_starts, longest = [0], [0], 0
        for path in files:
            try:
                reader = pa.ipc.open_file(pa.memory_map(str(path)))
            except (OSError, pa.ArrowInvalid) as error:
                raise InputError(f"{path} is no Arrow file ({error}): make it again with the stage binarize") from error
            for index in range(reader.num_record_batches):
                batch = reader.get_batch(index)
                columns = batch.column("src"), batch.column("tgt")
                src, tgt = ((column.offsets.to_numpy(), column.values.to_numpy()) for column in columns)
                self._sides.append((src, tgt))
                longest = max(longest, *(int(np.diff(offsets).max(initial=0)) for offsets, _ in (src, tgt)))
                starts.append(starts[-1] + batch.num_rows)
                self._lines.append(batch.column("line").to_numpy())
            file_starts.append(starts[-1])
        if starts[-1] == 0:
            raise InputError(f"there is no pair in {len(files)} binned files: train on a corpus that has some")
        self._starts, self._file_starts = np.array(starts), np.array(file_starts)
        # Only these arrays grow with the corpus: 2 bytes per side, or 4 if a sentence has 65,536 subwords or more.
        dtype = np.uint16 if longest < 2**16 else np.uint32
        self.src_lengths: NDArray[np.unsignedinteger] = np.empty(len(self), dtype)
        """Subwords of each source, EOS included."""
        self.tgt_lengths: NDArray[np.unsignedinteger] = np.empty(len(self), dtype)
        """Subwords of each target, EOS included."""
        for (first, last), (src, tgt) in zip(pairwise(starts), self._sides, strict=True):
            self.src_lengths[first:last], self.tgt_lengths[first:last] = np.diff(src[0]), np.diff(tgt[0])
        self.tokens = int(self.src_lengths.sum(dtype=np.int64) + self.tgt_lengths.sum(dtype=np.int64))
        """Subwords of both sides."""

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _find(self, index: int) -> tuple[int, int]:
        """Return the record batch of a pair and its row there."""
        batch = int(np.searchsorted(self._starts, index, side="right")) - 1
        return batch, index - int(self._starts[batch])

    def pair(self, index: int) -> tuple[NDArray[np.unsignedinteger], NDArray[np.unsignedinteger]]:
        """Return source and target ids of a pair, each ending in EOS."""
        batch, row = self._find(index)
        (src_offsets, src), (tgt_offsets, tgt) = self._sides[batch]
        return src[src_offsets[row] : src_offsets[row + 1]], tgt[tgt_offsets[row] : tgt_offsets[row + 1]]

    def line(self, index: int) -> int:
        """Return the line number of a pair in the tokenised files, counted from 1."""
        batch, row = self._find(index)
        return int(self._lines[batch][row]) + 1

    def files(self) -> Iterator[tuple[int, int]]:
        """Yield the first pair of each file, and the one after its last."""
        return pairwise(self._file_starts.tolist())

    def bins(self, pairs: NDArray[np.integer]) -> NDArray[np.integer]:
        """Return the file number of each pair, or the target's length if there is only one file."""
        alone = len(self._file_starts) == 2
        bins: NDArray[np.integer] = (
            self.tgt_lengths[pairs] if alone else np.searchsorted(self._file_starts, pairs, side="right")
        )
        return bins

    def checksum(self) -> int:
        """Return the CRC-32 of all ids, lengths and file boundaries: everything that training reads from the corpus.

        Reads the whole corpus once: 4.5 GB for 36 million pairs, which the first epoch reads anyway.
        """
        checksum = 0
        for array in (self._file_starts, self.src_lengths, self.tgt_lengths):
            checksum = zlib.crc32(array.data, checksum)
        for offsets, ids in chain.from_iterable(self._sides):
            checksum = zlib.crc32(ids[offsets[0] : offsets[-1]].data, checksum)
        return checksum

    def sums(self, pairs: NDArray[np.integer]) -> LengthSums:
        """Return the sums of lengths that determine the cost of training on `pairs`."""
        src, tgt = self.src_lengths[pairs].astype(np.int64), self.tgt_lengths[pairs].astype(np.int64)
        sums = (src.sum(), tgt.sum(), (src**2).sum(), (tgt**2).sum(), (src * tgt).sum())
        return LengthSums(len(pairs), *map(int, sums))


def train_files(folder: Path) -> list[Path]:
    """Return the length bins of a binned corpus, shortest first; raise InputError if there is none."""
    files = sorted(folder.glob("train.*.arrow"))
    if not files:
        raise InputError(f"{folder} holds no train.*.arrow: run the stage binarize")
    return files


def check_positions(model: ModelSettings, corpus: Corpus, valid: Corpus) -> None:
    """Raise InputError if a sentence is longer than the model's table of learned positions."""
    if model.positions != "learned":
        return
    for name, pairs in (("training", corpus), ("validation", valid)):
        lengths = np.maximum(pairs.src_lengths, pairs.tgt_lengths)
        longest = int(lengths.argmax())
        if lengths[longest] > model.max_positions:
            raise InputError(
                f"line {pairs.line(longest):,} of the {name} set has {lengths[longest]:,} subwords, but "
                f"model.max_positions is {model.max_positions:,}: raise that, or shorten the line"
            )


@dataclass(frozen=True)
class MicroBatch:
    """Pairs that go through the model together, padded with PAD at the end."""

    src: Int[Tensor, "batch src"]
    tgt_in: Int[Tensor, "batch tgt"]
    """BOS, then the target without its EOS."""
    positions: Int[Tensor, "tokens"]
    """Indices of the real targets in the flattened [batch, tgt]."""
    labels: Int[Tensor, "tokens"]

    def to(self, device: torch.device) -> MicroBatch:
        """Copy to a device without blocking the host."""
        if device.type == "cpu":
            return self
        tensors = (self.src, self.tgt_in, self.positions, self.labels)
        return MicroBatch(*(tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors))

    def halves(self) -> tuple[MicroBatch, MicroBatch]:
        """Return the pairs in two halves; raise InputError for a single pair."""
        rows, width = self.tgt_in.shape
        if rows == 1:
            raise InputError(
                f"a single pair of {self.src.shape[1]} and {width} subwords does not fit into this device's memory: "
                "lower binning.max_length, or use a larger device"
            )
        cut = rows // 2
        count = int((self.positions < cut * width).sum())
        return (
            MicroBatch(self.src[:cut], self.tgt_in[:cut], self.positions[:count], self.labels[:count]),
            MicroBatch(self.src[cut:], self.tgt_in[cut:], self.positions[count:] - cut * width, self.labels[count:]),
        )


def micro_batch(corpus: Corpus, pairs: Sequence[int] | NDArray[np.integer]) -> MicroBatch:
    """Make a micro-batch of pairs, padded to the longest."""
    sides = [corpus.pair(int(index)) for index in pairs]
    src = np.full((len(sides), max(len(s) for s, _ in sides)), PAD, dtype=np.int64)
    tgt = np.full((len(sides), max(len(t) for _, t in sides)), PAD, dtype=np.int64)
    tgt_in = np.full_like(tgt, PAD)
    tgt_in[:, 0] = BOS
    for row, (s, t) in enumerate(sides):
        src[row, : len(s)] = s
        tgt[row, : len(t)] = t
        tgt_in[row, 1 : len(t)] = t[:-1]
    positions = np.flatnonzero(tgt != PAD)
    return MicroBatch(*map(torch.from_numpy, (src, tgt_in, positions, tgt.reshape(-1)[positions])))


def by_length(corpus: Corpus, pairs: NDArray[np.integer]) -> NDArray[np.integer]:
    """Sort pairs by target bin, then by source length, so that neighbours have similar lengths on both sides."""
    return pairs[np.lexsort((corpus.src_lengths[pairs], corpus.bins(pairs)))]


def pack(corpus: Corpus, pairs: NDArray[np.integer], micro_tokens: int) -> list[NDArray[np.integer]]:
    """Cut pairs into micro-batches of at most `micro_tokens` padded positions a side.

    A longer pair gets a micro-batch of its own. Two orders are tried, one sorted more finely by source length, one by
    target length; the one with less padding is used.
    """

    def padded(parts: list[NDArray[np.integer]]) -> int:
        sides = corpus.src_lengths, corpus.tgt_lengths
        return sum(len(part) * sum(int(lengths[part].max()) for lengths in sides) for part in parts)

    finely_by_target = pairs[np.lexsort((corpus.src_lengths[pairs], corpus.tgt_lengths[pairs]))]
    return min(
        (_cut(corpus, order, micro_tokens) for order in (by_length(corpus, pairs), finely_by_target)), key=padded
    )


def _cut(corpus: Corpus, order: NDArray[np.integer], micro_tokens: int) -> list[NDArray[np.integer]]:
    parts, start, longest = [], 0, 0
    sizes = np.maximum(corpus.src_lengths[order], corpus.tgt_lengths[order]).tolist()
    for end, size in enumerate(sizes):
        longest = max(longest, size)
        if end > start and (end + 1 - start) * longest > micro_tokens:
            parts.append(order[start:end])
            start, longest = end, size
    return [*parts, order[start:]] if len(order) else []


class EpochPlan:
    """Which pairs each update of an epoch trains on: every pair once, pairs of about equal length together.

    Pairs are sorted by target bin and then by source length, similar lengths in random order. The sorted pairs are cut
    into updates of equal size, and the updates are shuffled.
    """

    def __init__(self, corpus: Corpus, seed: int, epoch: int, tokens: int) -> None:
        random = np.random.default_rng((seed, epoch))
        self.order = np.empty(len(corpus), dtype=np.int32)
        count = updates_an_epoch(corpus, tokens)
        cut = np.arange(1, count)
        bounds = corpus.tokens * cut // count
        cuts, done = np.zeros_like(cut), 0
        # Bin by bin, because the temporary arrays take several times the memory of the result.
        for first, last in corpus.files():
            inside = np.arange(first, last, dtype=np.int32)
            jitter = random.uniform(0.97, 1.03, last - first).astype(np.float32)
            jittered = corpus.src_lengths[first:last].astype(np.int32) * jitter
            order = inside[np.lexsort((jittered, corpus.bins(inside)))]
            self.order[first:last] = order
            lengths = corpus.src_lengths[order].astype(np.int64) + corpus.tgt_lengths[order]
            cuts += np.searchsorted(done + np.cumsum(lengths), bounds, side="right")
            done += int(lengths.sum())
        # A pair longer than an update's share must not leave the next update empty.
        cuts = np.maximum.accumulate(np.maximum(cuts, 1) - cut) + cut
        self._bounds = np.concatenate(([0], np.minimum(cuts, len(corpus) - count + cut), [len(corpus)]))
        self._shuffled = random.permutation(count)

    def pairs(self, index: int) -> NDArray[np.int32]:
        """Return a copy of the pairs of the epoch's update `index`, counted from 0."""
        slot = self._shuffled[index]
        return self.order[self._bounds[slot] : self._bounds[slot + 1]].copy()


def pairs_of(corpus: Corpus, seed: int, tokens: int, numbers: Iterable[int]) -> Iterator[tuple[int, NDArray[np.int32]]]:
    """Yield each given update, counted from 1 and in order, with its pairs; each epoch is planned once."""
    count = updates_an_epoch(corpus, tokens)
    for epoch, inside in groupby(numbers, lambda number: (number - 1) // count):
        plan = EpochPlan(corpus, seed, epoch, tokens)
        for number in inside:
            yield number, plan.pairs((number - 1) % count)
        del plan  # The next plan is made after the memory of this one is free.


def updates_an_epoch(corpus: Corpus, tokens: int) -> int:
    """Return how many updates of about `tokens` source and `tokens` target tokens an epoch has, at least 1."""
    return min(len(corpus), max(1, round(corpus.tokens / (2 * tokens))))


@dataclass(frozen=True)
class Update:
    """One rank's share of an update, and the whole update's size."""

    number: int
    batches: list[MicroBatch]
    sums: LengthSums
    """Of all ranks' pairs."""
    padded: int
    """Positions of this rank's micro-batches, source and target, padding included."""


def updates(
    corpus: Corpus,
    seed: int,
    tokens: int,
    micro_tokens: Callable[[], int],
    rank: int,
    size: int,
    first: int,
    last: int,
) -> Iterator[Update]:
    """Yield this rank's share of the updates `first` to `last`, counted from 1, over as many epochs as needed.

    Ranks take the update's pairs in turn, sorted by length, so that each has about the same work. A rank may get none.
    `micro_tokens` is called for every update, because the size may be lowered.
    """
    for number, chosen in pairs_of(corpus, seed, tokens, range(first, last + 1)):
        pairs = by_length(corpus, chosen)
        batches = [micro_batch(corpus, part) for part in pack(corpus, pairs[rank::size], micro_tokens())]
        padded = sum(batch.src.numel() + batch.tgt_in.numel() for batch in batches)
        yield Update(number, batches, corpus.sums(pairs), padded)


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
