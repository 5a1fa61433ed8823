"""Turn tokenised text into subword ids, sorted into length bins: data/tokenized -> data/binned.

The files are Arrow's IPC file format, to be mapped into memory: columns `src` and `tgt` (subword ids, EOS included),
`line` (from 0, in the tokenised files). `train.<upper>.arrow` holds the pairs with at most `upper` target subwords
that fit no bin below, in the corpus's order; a bin without pairs has no file. `valid.arrow` holds every pair.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nmt.common.files import sha256_of, writing
from nmt.config import EOS, UNK, BinningSettings, InputError
from nmt.text import subwords
from nmt.text.parallel_text import Block, read_parallel_blocks
from nmt.text.subwords import Subwords
from pipeline import stage
from pipeline.config.settings import DataSettings, load_section
from pipeline.corpora.blocks import executor, ordered
from pipeline.corpora.disk import IN_CACHE, full_disk_told
from pipeline.corpora.padding import PIECE, TOKENS, PairLengths, expected_padding
from pipeline.stage import Tracker

TOKENIZED = Path("data/tokenized")
SUBWORDS = Path("data/subwords")
BINNED = Path("data/binned")
STATS = "stats.json"
SIDES = ("src", "tgt")

PAIRS = 8192
"""Pairs that a worker is handed at once."""
BATCH = 8192
"""Pairs of a record batch: what of each bin is held in memory."""
SHORTEST = 8
"""The upper length of the first bin, as in tensor2tensor: shorter sentences are too few to need bins of their own."""


def bin_uppers(settings: BinningSettings) -> list[int]:
    """The longest target length of each bin, EOS included; they grow by `growth`, by 1 at least."""
    uppers = [min(SHORTEST, settings.max_length)]
    while uppers[-1] < settings.max_length:
        uppers.append(min(settings.max_length, max(uppers[-1] + 1, int(uppers[-1] * settings.growth))))
    return uppers


@dataclass(frozen=True)
class Job:
    """What workers have to know. Without uppers every pair is kept, under the upper 0."""

    folder: Path
    """Of the subwords, absolute."""
    version: str
    """Changes with the folder's content: a worker keeps what it has loaded."""
    uppers: tuple[int, ...]


@dataclass(frozen=True)
class Encoded:
    """A block of pairs as ids."""

    bins: dict[int, pa.RecordBatch]
    """By upper length."""
    too_long: int
    unknown: int
    """UNK on both sides of the pairs kept."""


class _Rows:
    """Pairs on their way into a record batch."""

    def __init__(self, code: str) -> None:
        self.src, self.tgt = array(code), array(code)
        self.src_ends, self.tgt_ends, self.line = array("i", [0]), array("i", [0]), array("q")

    def add(self, source: list[int], target: list[int], line: int) -> None:
        self.src.extend(source)
        self.tgt.extend(target)
        self.src_ends.append(len(self.src))
        self.tgt_ends.append(len(self.tgt))
        self.line.append(line)

    def batch(self) -> pa.RecordBatch:
        sides = [
            pa.ListArray.from_arrays(pa.array(np.asarray(ends)), pa.array(np.asarray(ids)))
            for ends, ids in ((self.src_ends, self.src), (self.tgt_ends, self.tgt))
        ]
        return pa.record_batch([*sides, pa.array(np.asarray(self.line))], names=["src", "tgt", "line"])


@lru_cache(maxsize=1)
def _subwords(folder: Path, _version: str) -> Subwords:
    """One a process, for the words that it remembers."""
    return subwords.load(folder)


def encode(job: Job, blocks: tuple[Block, Block]) -> Encoded:
    """Encode a block of pairs and sort it into bins; runs in a worker."""
    vocabulary = _subwords(job.folder, job.version)
    code = "H" if vocabulary.size < 2**16 else "I"
    rows: dict[int, _Rows] = {}
    too_long = unknown = 0
    for line, pair in enumerate(zip(blocks[0].lines(), blocks[1].lines(), strict=True), start=blocks[0].first):
        source, target = vocabulary.encode(pair[0]), vocabulary.encode(pair[1])
        source.append(EOS)
        target.append(EOS)
        upper = 0
        if job.uppers:
            if max(len(source), len(target)) > job.uppers[-1]:
                too_long += 1
                continue
            upper = job.uppers[bisect_left(job.uppers, len(target))]
        if upper not in rows:
            rows[upper] = _Rows(code)
        rows[upper].add(source, target, line)
        unknown += source.count(UNK) + target.count(UNK)
    return Encoded({upper: rows[upper].batch() for upper in sorted(rows)}, too_long, unknown)


def _lengths(column: pa.ListArray) -> NDArray[np.int64]:
    """How many sentences there are of each length."""
    return np.bincount(np.diff(column.offsets.to_numpy()))


def _sum(left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.int64]:
    """Two histograms as one."""
    total = np.zeros(max(len(left), len(right)), dtype=np.int64)
    total[: len(left)] += left
    total[: len(right)] += right
    return total


def _compact(table: pa.Table) -> pa.RecordBatch:
    """The rows as one batch in memory of their own: Arrow pads a slice with what happens to stand behind it."""
    columns = []
    for name in SIDES:
        chunks = table.column(name).chunks
        lengths = np.concatenate([np.diff(chunk.offsets.to_numpy()) for chunk in chunks])
        ids = np.concatenate([chunk.flatten().to_numpy() for chunk in chunks])
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        columns.append(pa.ListArray.from_arrays(pa.array(ends), pa.array(ids)))
    return pa.record_batch([*columns, pa.array(table.column("line").to_numpy())], names=table.schema.names)


class BinFile:
    """An Arrow file in the making, in record batches of `BATCH` pairs whatever the blocks were."""

    def __init__(self, path: Path, schema: pa.Schema, stack: ExitStack) -> None:
        """The file is closed with `stack`, after `finish`."""
        self._writer = stack.enter_context(pa.ipc.new_file(stack.enter_context(path.open("wb")), schema))
        self._pending: list[pa.RecordBatch] = []
        self._waiting = 0
        self.src_lengths: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        """Sentences by length in subwords, EOS included."""
        self.tgt_lengths: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def add(self, batch: pa.RecordBatch) -> None:
        """Take some pairs."""
        self.src_lengths = _sum(self.src_lengths, _lengths(batch.column("src")))
        self.tgt_lengths = _sum(self.tgt_lengths, _lengths(batch.column("tgt")))
        self._pending.append(batch)
        self._waiting += batch.num_rows
        if self._waiting >= BATCH:
            self._flush()

    def finish(self) -> None:
        """Write what is left."""
        while self._waiting:
            self._flush()

    def _flush(self) -> None:
        table = pa.Table.from_batches(self._pending)
        self._writer.write_batch(_compact(table.slice(0, BATCH)))
        self._pending = table.slice(BATCH).to_batches()
        self._waiting = max(0, self._waiting - BATCH)

    @property
    def pairs(self) -> int:
        """How many pairs it has."""
        return int(self.tgt_lengths.sum())

    @property
    def source_tokens(self) -> int:
        """Source subwords, EOS included."""
        return int(self.src_lengths @ np.arange(len(self.src_lengths)))

    @property
    def target_tokens(self) -> int:
        """Target subwords, EOS included."""
        return int(self.tgt_lengths @ np.arange(len(self.tgt_lengths)))


@dataclass(frozen=True)
class Written:
    """What became of a parallel text."""

    bins: Mapping[int, BinFile]
    lengths: PairLengths
    too_long: int
    unknown: int

    def counts(self) -> dict[str, int]:
        """Pairs and tokens over all bins."""
        files = self.bins.values()
        return {
            "pairs": sum(file.pairs for file in files),
            "source_tokens": sum(file.source_tokens for file in files),
            "target_tokens": sum(file.target_tokens for file in files),
        }

    def unknown_rate(self) -> float:
        """UNK over all subwords of both sides, EOS not counted."""
        counts = self.counts()
        return self.unknown / max(1, counts["source_tokens"] + counts["target_tokens"] - 2 * counts["pairs"])


def write_bins(sides: tuple[Path, Path], job: Job, name: str, pool: Executor) -> Written:
    """Encode a parallel text into the files `name`, `{upper}` in it filled in; the same bytes for any pool."""
    bins: dict[int, BinFile] = {}
    lengths = PairLengths()
    too_long = unknown = 0
    with ExitStack() as stack:
        for block in ordered(pool, partial(encode, job), read_parallel_blocks(*sides, PAIRS)):
            too_long += block.too_long
            unknown += block.unknown
            for upper, batch in block.bins.items():
                if upper not in bins:
                    bins[upper] = BinFile(Path(name.format(upper=upper)), batch.schema, stack)
                bins[upper].add(batch)
                lengths.add(*(np.diff(batch.column(side).offsets.to_numpy()).astype(np.int64) for side in SIDES))
        for file in bins.values():
            file.finish()
    return Written(dict(sorted(bins.items())), lengths, too_long, unknown)


def binarize(
    sides: Mapping[str, tuple[Path, Path]], vocabulary: Path, settings: BinningSettings, folder: Path, pool: Executor
) -> dict[str, Any]:
    """Write the binned corpus into `folder` and give its statistics; `sides` are those of `train` and of `valid`.

    Raises InputError where no training pair is kept.
    """
    size = subwords.load(vocabulary).size
    version = " ".join(sha256_of(path) for path in sorted(vocabulary.iterdir()))
    uppers = bin_uppers(settings)
    job = Job(vocabulary.resolve(), version, tuple(uppers))
    train = write_bins(sides["train"], job, str(folder / "train.{upper:05d}.arrow"), pool)
    if not train.bins:
        raise InputError(
            f"each of the {train.too_long:,} training pairs has more than {settings.max_length} subwords on a side, "
            f"binning.max_length: raise it"
        )
    valid = write_bins(sides["valid"], Job(job.folder, version, ()), str(folder / "valid.arrow"), pool)
    return {
        **train.counts(),
        "dropped": {"too_long": train.too_long},
        "vocabulary": size,
        "out_of_vocabulary": {"train": train.unknown_rate(), "valid": valid.unknown_rate()},
        "expected_padding": expected_padding(train.lengths, uppers),
        "histogram": {str(upper): train.bins[upper].pairs if upper in train.bins else 0 for upper in uppers},
        "valid": valid.counts(),
    }


def run(tracker: Tracker) -> None:
    """Run the stage."""
    data = load_section("data", DataSettings)
    settings = load_section("binning", BinningSettings)
    sides = {
        name: (TOKENIZED / f"{name}.{data.source}", TOKENIZED / f"{name}.{data.target}") for name in ("train", "valid")
    }
    with full_disk_told(IN_CACHE, BINNED), writing(BINNED) as folder:
        folder.mkdir()
        with executor(sum(path.stat().st_size for path in sides["train"])) as pool:
            stats = binarize(sides, SUBWORDS, settings, folder, pool)
        stage.write_json(folder / STATS, stats)
    print(
        f"{stats['pairs']:,} pairs, {stats['dropped']['too_long']:,} dropped as too long; in training about "
        f"{stats['expected_padding']:.1%} will be padding (updates of {TOKENS:,} tokens a side, {PIECE:,} at a time)"
    )
    tracker.metrics(
        {
            "pairs": stats["pairs"],
            "source_tokens": stats["source_tokens"],
            "target_tokens": stats["target_tokens"],
            "dropped_too_long_subwords": stats["dropped"]["too_long"],
            "out_of_vocabulary_train": stats["out_of_vocabulary"]["train"],
            "out_of_vocabulary_valid": stats["out_of_vocabulary"]["valid"],
            "expected_padding": stats["expected_padding"],
        }
    )
