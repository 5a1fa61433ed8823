"""Binned corpus to batches of about 25,000 source and 25,000 target tokens; section 5.1.

What an update trains on is a function of (corpus, seed, update) alone: the same pairs whatever the number of
ranks and the size of micro-batches, so a resumed run needs no data state.
"""

from __future__ import annotations

import queue
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from nmt.common.shapes import Int
from nmt.config import BOS, PAD, InputError
from nmt.flops import LengthSums

AHEAD = 4
"""Updates prepared while earlier ones are computed."""


class Corpus:
    """Pairs of subword ids in Arrow files, memory-mapped: what is read is cached by the system, not held here."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._sides: list[
            tuple[NDArray[np.int32], NDArray[np.unsignedinteger], NDArray[np.int32], NDArray[np.unsignedinteger]]
        ] = []
        self._lines: list[NDArray[np.int64]] = []
        starts, file_starts, longest = [0], [0], 0
        for path in files:
            try:
                reader = pa.ipc.open_file(pa.memory_map(str(path)))
            except (OSError, pa.ArrowInvalid) as error:
                raise InputError(f"{path} is no Arrow file ({error}): make it again with the stage binarize") from error
            for index in range(reader.num_record_batches):
                batch = reader.get_batch(index)
                src, tgt = batch.column("src"), batch.column("tgt")
                sides = (
                    src.offsets.to_numpy(), src.values.to_numpy(), tgt.offsets.to_numpy(), tgt.values.to_numpy(),
                )  # fmt: skip
                self._sides.append(sides)
                longest = max(longest, *(int(np.diff(offsets).max(initial=0)) for offsets in sides[::2]))
                starts.append(starts[-1] + batch.num_rows)
                self._lines.append(batch.column("line").to_numpy())
            file_starts.append(starts[-1])
        if starts[-1] == 0:
            raise InputError(f"there is no pair in {len(files)} binned files: train on a corpus that has some")
        self._starts, self._file_starts = np.array(starts), np.array(file_starts)
        # Of all that is here these alone grow with the corpus: 2 bytes a side, unless a sentence is enormous.
        kind = np.uint16 if longest < 2**16 else np.uint32
        self.src_lengths: NDArray[np.unsignedinteger] = np.empty(len(self), dtype=kind)
        """Subwords of each source, EOS included."""
        self.tgt_lengths: NDArray[np.unsignedinteger] = np.empty(len(self), dtype=kind)
        """Subwords of each target, EOS included."""
        for (first, last), sides in zip(pairwise(starts), self._sides, strict=True):
            self.src_lengths[first:last] = np.diff(sides[0])
            self.tgt_lengths[first:last] = np.diff(sides[2])
        self.tokens = int(self.src_lengths.sum(dtype=np.int64) + self.tgt_lengths.sum(dtype=np.int64))
        """Subwords of both sides."""

    def __len__(self) -> int:
        return int(self._starts[-1])

    def pair(self, index: int) -> tuple[NDArray[np.unsignedinteger], NDArray[np.unsignedinteger]]:
        """Source and target ids of a pair, each ending in EOS."""
        block = int(np.searchsorted(self._starts, index, side="right")) - 1
        row = index - int(self._starts[block])
        src_offsets, src, tgt_offsets, tgt = self._sides[block]
        return src[src_offsets[row] : src_offsets[row + 1]], tgt[tgt_offsets[row] : tgt_offsets[row + 1]]

    def line(self, index: int) -> int:
        """Where a pair stands in the tokenised files, lines counted from 1."""
        block = int(np.searchsorted(self._starts, index, side="right")) - 1
        return int(self._lines[block][index - int(self._starts[block])]) + 1

    def files(self) -> Iterator[tuple[int, int]]:
        """The first pair of each file, and the one after its last."""
        return pairwise(self._file_starts.tolist())

    def bins(self, pairs: NDArray[np.integer]) -> NDArray[np.integer]:
        """The file that each of some pairs stands in; the target's length where there is one file alone."""
        alone = len(self._file_starts) == 2
        bins: NDArray[np.integer] = (
            self.tgt_lengths[pairs] if alone else np.searchsorted(self._file_starts, pairs, side="right")
        )
        return bins

    def checksum(self) -> int:
        """The CRC-32 of every id, of every length and of where the files begin: all that training reads here.

        Reads the whole corpus once: 4.5 GB for 36 million pairs, which the first epoch reads anyway.
        """
        checksum = 0
        for array in (self._file_starts, self.src_lengths, self.tgt_lengths):
            checksum = zlib.crc32(array.data, checksum)
        for src_offsets, src, tgt_offsets, tgt in self._sides:
            for offsets, ids in ((src_offsets, src), (tgt_offsets, tgt)):
                checksum = zlib.crc32(ids[offsets[0] : offsets[-1]].data, checksum)
        return checksum

    def sums(self, pairs: NDArray[np.integer]) -> LengthSums:
        """What the cost of training on `pairs` follows from."""
        src, tgt = self.src_lengths[pairs].astype(np.int64), self.tgt_lengths[pairs].astype(np.int64)
        return LengthSums(
            pairs=len(pairs), source=int(src.sum()), target=int(tgt.sum()), source_squared=int((src**2).sum()),
            target_squared=int((tgt**2).sum()), product=int((src * tgt).sum()),
        )  # fmt: skip


def train_files(folder: Path) -> list[Path]:
    """The length bins of a binned corpus, shortest first; raises InputError where there is none."""
    files = sorted(folder.glob("train.*.arrow"))
    if not files:
        raise InputError(f"{folder} holds no train.*.arrow: run the stage binarize")
    return files


@dataclass(frozen=True)
class MicroBatch:
    """Pairs that go through the model together, padded with PAD at the end."""

    src: Int[Tensor, "batch src"]
    tgt_in: Int[Tensor, "batch tgt"]
    """BOS, then the target without its EOS."""
    positions: Int[Tensor, "tokens"]
    """Where the real targets stand in the flattened [batch, tgt]."""
    labels: Int[Tensor, "tokens"]

    def to(self, device: torch.device) -> MicroBatch:
        """The same on a device; the copy does not hold up the host."""
        if device.type == "cpu":
            return self
        src, tgt_in, positions, labels = (
            tensor.pin_memory().to(device, non_blocking=True)
            for tensor in (self.src, self.tgt_in, self.positions, self.labels)
        )
        return MicroBatch(src, tgt_in, positions, labels)

    def halves(self) -> tuple[MicroBatch, MicroBatch]:
        """The same pairs in two; raises InputError where there is one alone."""
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
    """Pad some pairs to their longest."""
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
    return MicroBatch(
        torch.from_numpy(src), torch.from_numpy(tgt_in), torch.from_numpy(positions),
        torch.from_numpy(tgt.reshape(-1)[positions]),
    )  # fmt: skip


def by_length(corpus: Corpus, pairs: NDArray[np.integer]) -> NDArray[np.integer]:
    """Pairs in order of target bin, then of source length: neighbours are alike on both sides."""
    return pairs[np.lexsort((corpus.src_lengths[pairs], corpus.bins(pairs)))]


def pack(corpus: Corpus, pairs: NDArray[np.integer], micro_tokens: int) -> list[NDArray[np.integer]]:
    """Cut pairs into micro-batches of at most `micro_tokens` padded positions a side.

    A single pair that is longer stands alone. Which side is sorted more finely is tried both ways: the one with
    less padding is taken.
    """
    finely_by_target = pairs[np.lexsort((corpus.src_lengths[pairs], corpus.tgt_lengths[pairs]))]
    ways = [_cut(corpus, order, micro_tokens) for order in (by_length(corpus, pairs), finely_by_target)]
    return min(ways, key=lambda parts: sum(_padded(corpus, part) for part in parts))


def _cut(corpus: Corpus, order: NDArray[np.integer], micro_tokens: int) -> list[NDArray[np.integer]]:
    parts, start, longest = [], 0, 0
    sizes = np.maximum(corpus.src_lengths[order], corpus.tgt_lengths[order]).tolist()
    for end, size in enumerate(sizes):
        longest = max(longest, size)
        if end > start and (end + 1 - start) * longest > micro_tokens:
            parts.append(order[start:end])
            start, longest = end, size
    return [*parts, order[start:]] if len(order) else []


def _padded(corpus: Corpus, part: NDArray[np.integer]) -> int:
    return len(part) * (int(corpus.src_lengths[part].max()) + int(corpus.tgt_lengths[part].max()))


class EpochPlan:
    """Which pairs each update of an epoch trains on: every pair once, pairs of about equal length together.

    Pairs are put in order of target bin and then of source length, ties and near-ties at random, and the row of
    them is cut into updates of equal size, which are then shuffled.
    """

    def __init__(self, corpus: Corpus, seed: int, epoch: int, tokens: int) -> None:
        random = np.random.default_rng((seed, epoch))
        self.order = np.empty(len(corpus), dtype=np.int32)
        count = updates_an_epoch(corpus, tokens)
        cut = np.arange(1, count)
        wanted = corpus.tokens * cut // count
        cuts, done = np.zeros_like(cut), 0
        # Bin by bin: what is needed on the way takes several times the memory of what is kept.
        for first, last in corpus.files():
            inside = np.arange(first, last, dtype=np.int32)
            jitter = random.uniform(0.97, 1.03, last - first).astype(np.float32)
            jittered = corpus.src_lengths[first:last].astype(np.int32) * jitter
            order = inside[np.lexsort((jittered, corpus.bins(inside)))]
            self.order[first:last] = order
            lengths = corpus.src_lengths[order].astype(np.int64) + corpus.tgt_lengths[order]
            cuts += np.searchsorted(done + np.cumsum(lengths), wanted, side="right")
            done += int(lengths.sum())
        # A pair longer than an update's share must not leave its neighbour empty.
        cuts = np.maximum.accumulate(np.maximum(cuts, 1) - cut) + cut
        self._bounds = np.concatenate(([0], np.minimum(cuts, len(corpus) - count + cut), [len(corpus)]))
        self._shuffled = random.permutation(count)

    def pairs(self, index: int) -> NDArray[np.int32]:
        """The pairs of the epoch's update `index`, counted from 0."""
        slot = self._shuffled[index]
        return self.order[self._bounds[slot] : self._bounds[slot + 1]]


def pairs_of(corpus: Corpus, seed: int, tokens: int, numbers: Iterable[int]) -> Iterator[tuple[int, NDArray[np.int32]]]:
    """The pairs that each of some updates, counted from 1 and in order, trains on; an epoch is planned once."""
    count = updates_an_epoch(corpus, tokens)
    for epoch, inside in groupby(numbers, lambda number: (number - 1) // count):
        plan = EpochPlan(corpus, seed, epoch, tokens)
        for number in inside:
            yield number, plan.pairs((number - 1) % count)


def updates_an_epoch(corpus: Corpus, tokens: int) -> int:
    """How many updates of about `tokens` source and `tokens` target tokens the corpus makes, at least 1."""
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
    """This rank's share of the updates `first` to `last`, counted from 1, over as many epochs as it takes.

    Ranks are dealt the update's pairs in turn, in order of length: each gets about the same work. A rank may get none.
    `micro_tokens` is asked at every update: it may shrink.
    """
    count = updates_an_epoch(corpus, tokens)
    epoch, plan = -1, None
    for number in range(first, last + 1):
        if plan is None or (number - 1) // count != epoch:
            epoch = (number - 1) // count
            plan = None  # Not two at a time in memory.
            plan = EpochPlan(corpus, seed, epoch, tokens)
        pairs = by_length(corpus, plan.pairs((number - 1) % count))
        batches = [micro_batch(corpus, part) for part in pack(corpus, pairs[rank::size], micro_tokens())]
        padded = sum(batch.src.numel() + batch.tgt_in.numel() for batch in batches)
        yield Update(number, batches, corpus.sums(pairs), padded)


def ahead(items: Iterator[Update]) -> Iterator[Update]:
    """The same items, made by a thread while earlier ones are used; its errors are raised here."""
    ready: queue.Queue[Update | BaseException | None] = queue.Queue(AHEAD)
    stopped = threading.Event()

    def put(item: Update | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return

    def produce() -> None:
        try:
            for item in items:
                put(item)
                if stopped.is_set():
                    return
            put(None)
        except BaseException as error:
            put(error)

    thread = threading.Thread(target=produce, name="batches", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        thread.join()
