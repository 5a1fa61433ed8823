"""Turn tokenised text into subword ids, sorted into length bins: data/tokenized -> data/binned.

The files have Arrow's IPC file format, for memory mapping: columns `src` and `tgt` (subword ids, EOS included) and
`line` (from 0, in the tokenised files). `train.<upper>.arrow` holds the pairs with at most `upper` target subwords
that fit no bin below, in the corpus's order; a bin without pairs has no file. `valid.arrow` holds every pair.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from functools import lru_cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from nmt.common.files import sha256_of, writing
from nmt.config import EOS, UNK, BinningSettings, InputError
from nmt.text import codec
from nmt.text.parallel_text import Block, read_parallel_blocks
from nmt.text.subwords import Subwords
from pipeline.common import stage
from pipeline.common.paths import BINNED, BINNED_STATS, SUBWORDS, TOKENIZED
from pipeline.common.settings import DataSettings, VersionSettings, load_section
from pipeline.common.stage import Tracker
from pipeline.corpora.disk import IN_CACHE, explain_full_disk
from pipeline.parallel.parallel_map import executor, map_in_order

SIZES = ("pairs", "source_tokens", "target_tokens")
PAIRS = 8192  # per task of a worker
BATCH = 8192  # pairs per record batch: as many of each bin are held in memory
SHORTEST = 8  # the upper length of the first bin, as in tensor2tensor: few sentences are shorter


def bin_uppers(settings: BinningSettings) -> list[int]:
    """Return the longest target length of each bin, EOS included; they grow by the factor `growth`, by 1 at least."""
    uppers = [min(SHORTEST, settings.max_length)]
    while uppers[-1] < settings.max_length:
        uppers.append(min(settings.max_length, max(uppers[-1] + 1, int(uppers[-1] * settings.growth))))
    return uppers


SHOWN = 5  # unknown symbols that are named

Unknown = dict[str, tuple[int, int]]
"""Symbols that a closed target vocabulary lacks, in the order of the text: how often each occurs, and the number of its
first line, from 1."""
Encoded = tuple[dict[int, pa.RecordBatch], Counter[str], Unknown]
"""A block of pairs as ids, by upper length, and the counts pairs, source_tokens, target_tokens (EOS included), too_long
and unknown (UNK on both sides)."""


def _batch(sides: Iterable[tuple[Any, Any]], lines: Any) -> pa.RecordBatch:
    """Return a record batch of the source and target ids, given with their offsets, and the line numbers."""
    columns = [pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids)) for ids, offsets in sides]
    return pa.record_batch([*columns, pa.array(lines)], names=["src", "tgt", "line"])


@lru_cache(maxsize=1)
def _vocabularies(folder: Path, _version: str) -> tuple[Subwords, Subwords]:
    """Return the vocabularies of `folder`: one object per process, because they cache words."""
    return codec.load(folder)


def encode(folder: Path, version: str, uppers: Sequence[int], blocks: tuple[Block, Block]) -> Encoded:
    """Encode a block of pairs and sort it into bins; without uppers every pair is kept, under 0. Runs in a worker."""
    vocabularies = _vocabularies(folder, version)
    code = "H" if max(each.size for each in vocabularies) < 2**16 else "I"
    # By upper length: the ids and lengths of both sides, and the lines.
    rows: dict[int, tuple[list[array[int]], list[list[int]], array[int]]] = {}
    counts: Counter[str] = Counter()
    unknown: Unknown = {}
    closed = isinstance(vocabularies[1], codec.Symbols)
    for line, pair in enumerate(zip(blocks[0].lines(), blocks[1].lines(), strict=True), start=blocks[0].first):
        sides = [[*vocabulary.encode(text), EOS] for vocabulary, text in zip(vocabularies, pair, strict=True)]
        upper = 0
        if uppers:
            if max(map(len, sides)) > uppers[-1]:
                counts["too_long"] += 1
                continue
            upper = uppers[bisect_left(uppers, len(sides[1]))]
        ids, lengths, lines = rows.setdefault(upper, ([array(code), array(code)], [[], []], array("q")))
        lines.append(line)
        for side, row, of_side in zip(sides, ids, lengths, strict=True):
            row.extend(side)
            of_side.append(len(side))
            counts["unknown"] += side.count(UNK)
        if closed and UNK in sides[1]:
            lacking = Counter(symbol for symbol, row in zip(pair[1].split(), sides[1], strict=False) if row == UNK)
            _add(unknown, {symbol: (count, line + 1) for symbol, count in lacking.items()})
    batches = {}
    for upper, (ids, lengths, lines) in sorted(rows.items()):
        offsets = [np.array([0, *accumulate(of_side)], dtype=np.int32) for of_side in lengths]
        batches[upper] = _batch(zip(map(np.asarray, ids), offsets, strict=True), np.asarray(lines))
        counts.update(pairs=len(lines), source_tokens=len(ids[0]), target_tokens=len(ids[1]))
    return batches, counts, unknown


def _add(unknown: Unknown, later: Unknown) -> None:
    """Add the unknown symbols of later lines."""
    for symbol, (count, line) in later.items():
        before, first = unknown.get(symbol, (0, line))
        unknown[symbol] = before + count, first


def _compact(table: pa.Table) -> pa.RecordBatch:
    """Return the rows as one batch in new memory: Arrow pads a slice with the bytes behind it, which are arbitrary."""
    sides = []
    for name in ("src", "tgt"):
        chunks = table.column(name).chunks
        lengths = np.concatenate([np.diff(chunk.offsets.to_numpy()) for chunk in chunks])
        ids = np.concatenate([chunk.flatten().to_numpy() for chunk in chunks])
        sides.append((ids, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)))
    return _batch(sides, table.column("line").to_numpy())


class BinFile:
    """An Arrow file, written in record batches of `BATCH` pairs however large the added ones are."""

    def __init__(self, path: Path, schema: pa.Schema, stack: ExitStack) -> None:
        """The file is closed with `stack`, after `finish`."""
        self._writer = stack.enter_context(pa.ipc.new_file(stack.enter_context(path.open("wb")), schema))
        self._pending: list[pa.RecordBatch] = []
        self._waiting = self.pairs = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add pairs."""
        self.pairs += batch.num_rows
        self._pending.append(batch)
        self._waiting += batch.num_rows
        if self._waiting >= BATCH:
            self._flush()

    def finish(self) -> None:
        """Write the remaining pairs."""
        while self._waiting:
            self._flush()

    def _flush(self) -> None:
        table = pa.Table.from_batches(self._pending)
        self._writer.write_batch(_compact(table.slice(0, BATCH)))
        self._pending = table.slice(BATCH).to_batches()
        self._waiting = max(0, self._waiting - BATCH)


def write_bins(
    sides: tuple[Path, Path], encode_block: Callable[[tuple[Block, Block]], Encoded], name: str, pool: Executor
) -> tuple[Counter[str], dict[int, int], Unknown]:
    """Encode a parallel text into the files `name` (with `{upper}`).

    Returns its counts, its pairs by upper, and the symbols that a closed target vocabulary lacks.
    """
    counts: Counter[str] = Counter()
    unknown: Unknown = {}
    bins: dict[int, BinFile] = {}
    with ExitStack() as stack:
        for batches, block_counts, lacking in map_in_order(pool, encode_block, read_parallel_blocks(*sides, PAIRS)):
            counts.update(block_counts)
            _add(unknown, lacking)
            for upper, batch in batches.items():
                if upper not in bins:
                    bins[upper] = BinFile(Path(name.format(upper=upper)), batch.schema, stack)
                bins[upper].add(batch)
        for file in bins.values():
            file.finish()
    return counts, {upper: file.pairs for upper, file in bins.items()}, unknown


def _unknown_rate(counts: Counter[str]) -> float:
    """Return the share of UNK in the subwords of both sides, EOS not counted."""
    return counts["unknown"] / max(1, counts["source_tokens"] + counts["target_tokens"] - 2 * counts["pairs"])


def _report_unknown(unknown: Unknown, path: Path) -> int:
    """Return how many symbols of a text a closed vocabulary lacks; print them, if any, with their first lines."""
    number = sum(count for count, _ in unknown.values())
    if unknown:
        named = [f"`{symbol}` (line {line:,})" for symbol, (_, line) in list(unknown.items())[:SHOWN]]
        more = f" and {len(unknown) - SHOWN:,} more" if len(unknown) > SHOWN else ""
        print(
            f"{path}: {number:,} symbols become <unk>, because the training text has none like them: "
            f"{', '.join(named)}{more}"
        )
    return number


def binarize(
    sides: Mapping[str, tuple[Path, Path]], vocabulary: Path, settings: BinningSettings, folder: Path, pool: Executor
) -> dict[str, Any]:
    """Write the binned train and valid `sides` into `folder`, the same bytes for any pool; return their statistics.

    Prints which symbols a closed target vocabulary lacks. Raises InputError where no training pair is kept.
    """
    source, target = codec.load(vocabulary)
    # The version changes with the folder's content, so that a worker's cached subwords are the right ones.
    version = " ".join(sha256_of(path) for path in sorted(vocabulary.rglob("*")) if path.is_file())
    uppers = bin_uppers(settings)
    encode_block = partial(encode, vocabulary.resolve(), version)
    train, pairs, unknown = write_bins(
        sides["train"], partial(encode_block, uppers), str(folder / "train.{upper:05d}.arrow"), pool
    )
    if not pairs:
        raise InputError(
            f"each of the {train['too_long']:,} training pairs has more than {settings.max_length} subwords on a side, "
            f"binning.max_length: raise it"
        )
    valid, _, unknown_valid = write_bins(sides["valid"], partial(encode_block, ()), str(folder / "valid.arrow"), pool)
    closed: dict[str, Any] = {}
    if target is not source:
        found = {"train": unknown, "valid": unknown_valid}
        symbols = {name: _report_unknown(each, sides[name][1]) for name, each in found.items()}
        closed = {"target_vocabulary": target.size, "unknown_symbols": symbols}
    return {
        **{name: train[name] for name in SIZES},
        "dropped": {"too_long": train["too_long"]},
        "vocabulary": source.size,
        **closed,
        "out_of_vocabulary": {"train": _unknown_rate(train), "valid": _unknown_rate(valid)},
        "histogram": {str(upper): pairs.get(upper, 0) for upper in uppers},
        "valid": {name: valid[name] for name in SIZES},
    }


def run(tracker: Tracker) -> None:
    """Write data/binned."""
    data = load_section("data", DataSettings)
    settings = load_section("binning", BinningSettings)
    versions = load_section("versions", VersionSettings)
    stage.check_versions({"subword_nmt": versions.subword_nmt, "sentencepiece": versions.sentencepiece})
    sides = {
        name: (TOKENIZED / f"{name}.{data.source}", TOKENIZED / f"{name}.{data.target}") for name in ("train", "valid")
    }
    with explain_full_disk(IN_CACHE, BINNED), writing(BINNED) as folder:
        folder.mkdir()
        with executor(sum(path.stat().st_size for path in sides["train"])) as pool:
            stats = binarize(sides, SUBWORDS, settings, folder, pool)
        stage.write_json(folder / BINNED_STATS.name, stats)
    print(f"{stats['pairs']:,} pairs, {stats['dropped']['too_long']:,} dropped as too long")
    tracker.metrics(
        {
            **{name: stats[name] for name in SIZES},
            "dropped_too_long_subwords": stats["dropped"]["too_long"],
            **{f"out_of_vocabulary_{name}": rate for name, rate in stats["out_of_vocabulary"].items()},
            **{f"unknown_symbols_{name}": number for name, number in stats.get("unknown_symbols", {}).items()},
        }
    )
