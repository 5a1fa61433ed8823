"""Tokenise and filter the text: data/raw -> data/tokenized.

Training corpora are joined in the catalog's order; what is dropped is counted by corpus and reason, and so are kept
training pairs that also stand in the validation or the test set, both sides alike once tokenised. The validation
set is tokenised and never filtered; the test set stays raw.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO

from nmt.common.files import writing
from nmt.config import FilterSettings, InputError, TokenizerSettings
from nmt.text.moses import Moses
from nmt.text.parallel_text import REASONS, Block, drop_reason, read_parallel_blocks
from pipeline import stage
from pipeline.config.settings import DataSettings, PreparationSettings, VersionSettings, load_section
from pipeline.corpora.blocks import executor, ordered
from pipeline.corpora.disk import IN_CACHE, full_disk_told
from pipeline.stage import Tracker

RAW = Path("data/raw")
TOKENIZED = Path("data/tokenized")
STATS = "stats.json"

PAIRS = 8192
"""Pairs that a worker is handed at once."""


@dataclass(frozen=True)
class Job:
    """What workers have to know. Without filters every pair is kept."""

    source: str
    target: str
    tokenizer: TokenizerSettings
    filters: FilterSettings | None
    held_out: Mapping[str, frozenset[bytes]]
    """The digests of the pairs of sets that training should not see, by the sets' names."""


@dataclass
class Counts:
    """What became of a corpus, or of a block of it."""

    pairs: int
    """Before filtering."""
    kept: int
    dropped: Counter[str]
    overlap: Counter[str]
    source_tokens: int
    target_tokens: int

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.pairs + other.pairs,
            self.kept + other.kept,
            self.dropped + other.dropped,
            self.overlap + other.overlap,
            self.source_tokens + other.source_tokens,
            self.target_tokens + other.target_tokens,
        )

    def to_json(self, held_out: Iterable[str]) -> dict[str, Any]:
        """As it stands in stats.json: every reason and every set is named, zeros too."""
        return {
            "pairs": self.pairs,
            "kept": self.kept,
            "dropped": {reason: self.dropped[reason] for reason in REASONS},
            "overlap": {name: self.overlap[name] for name in held_out},
            "source_tokens": self.source_tokens,
            "target_tokens": self.target_tokens,
        }


NOTHING = Counts(0, 0, Counter(), Counter(), 0, 0)


@dataclass(frozen=True)
class Prepared:
    """A block of pairs, tokenised and filtered, as the text of both files, and what became of it."""

    source: bytes
    target: bytes
    counts: Counts


@lru_cache(maxsize=4)
def _moses(language: str, settings: TokenizerSettings) -> Moses:
    """One a process, for the words that it remembers."""
    return Moses(language, settings)


def _digest(source: str, target: str) -> bytes:
    return hashlib.blake2b(f"{source}\n{target}".encode(), digest_size=8).digest()


def prepare(job: Job, blocks: tuple[Block, Block]) -> Prepared:
    """Tokenise and filter a block of pairs; runs in a worker. Raises InputError at invalid UTF-8."""
    source_moses, target_moses = _moses(job.source, job.tokenizer), _moses(job.target, job.tokenizer)
    sources: list[str] = []
    targets: list[str] = []
    dropped: Counter[str] = Counter()
    overlap: Counter[str] = Counter()
    for source_line, target_line in zip(blocks[0].lines(), blocks[1].lines(), strict=True):
        source = source_moses.tokenize(source_moses.normalize(source_line))
        target = target_moses.tokenize(target_moses.normalize(target_line))
        reason = drop_reason(source, target, job.filters) if job.filters else None
        if reason is not None:
            dropped[reason] += 1
            continue
        sources.append(source)
        targets.append(target)
        if job.held_out:
            digest = _digest(source, target)
            overlap.update(name for name, digests in job.held_out.items() if digest in digests)
    counts = Counts(len(blocks[0]), len(sources), dropped, overlap, _tokens(sources), _tokens(targets))
    return Prepared(_text(sources), _text(targets), counts)


def _tokens(lines: list[str]) -> int:
    return sum([len(line.split()) for line in lines])


def _text(lines: list[str]) -> bytes:
    return "".join([line + "\n" for line in lines]).encode()


def _lines(text: bytes) -> list[str]:
    return text.decode().removesuffix("\n").split("\n")


def _write(results: Iterable[Prepared], source: BinaryIO, target: BinaryIO) -> Counts:
    """Write blocks as they come and count them."""
    counts = NOTHING
    for block in results:
        source.write(block.source)
        target.write(block.target)
        counts += block.counts
    return counts


def _sides(name: str, data: DataSettings) -> tuple[Path, Path]:
    return RAW / f"{name}.{data.source}", RAW / f"{name}.{data.target}"


def _results(pool: Executor, job: Job, sides: tuple[Path, Path]) -> Iterator[Prepared]:
    return ordered(pool, partial(prepare, job), read_parallel_blocks(*sides, PAIRS))


def _digests(results: Iterable[Prepared]) -> frozenset[bytes]:
    return frozenset(
        _digest(source, target)
        for block in results
        for source, target in zip(_lines(block.source), _lines(block.target), strict=True)
    )


def tokenize(data: DataSettings, preparation: PreparationSettings, folder: Path, pool: Executor) -> dict[str, Any]:
    """Write the tokenised text into `folder` and give its statistics; the same bytes for any number of workers.

    Raises InputError for sides of different length, invalid UTF-8, an empty corpus, and where no pair is kept.
    """
    valid, test = f"valid.{data.valid.name}", f"test.{data.test.name}"
    unfiltered = Job(data.source, data.target, preparation.tokenizer, None, {})
    held_out = {
        "valid": _digests(_results(pool, unfiltered, _sides(valid, data))),
        "test": _digests(_results(pool, unfiltered, _sides(test, data))),
    }
    with (folder / f"valid.{data.source}").open("wb") as source, (folder / f"valid.{data.target}").open("wb") as target:
        valid_counts = _write(_results(pool, unfiltered, _sides(valid, data)), source, target)
    job = Job(data.source, data.target, preparation.tokenizer, preparation.filters, held_out)
    corpora: dict[str, Counts] = {}
    with (folder / f"train.{data.source}").open("wb") as source, (folder / f"train.{data.target}").open("wb") as target:
        for corpus in data.train:
            sides = _sides(f"train.{corpus.name}", data)
            corpora[corpus.name] = _write(_results(pool, job, sides), source, target)
    total = sum(corpora.values(), NOTHING)
    if not total.kept:
        raise InputError(
            f"none of the {total.pairs:,} training pairs passes preparation.filters "
            f"({', '.join(f'{reason}: {count:,}' for reason, count in total.dropped.items())}): loosen them"
        )
    return {
        **total.to_json(held_out),
        "corpora": {name: counts.to_json(held_out) for name, counts in corpora.items()},
        "valid": {
            "pairs": valid_counts.pairs,
            "source_tokens": valid_counts.source_tokens,
            "target_tokens": valid_counts.target_tokens,
        },
    }


def run(tracker: Tracker) -> None:
    """Run the stage."""
    data = load_section("data", DataSettings)
    preparation = load_section("preparation", PreparationSettings)
    stage.check_versions({"sacremoses": load_section("versions", VersionSettings).sacremoses})
    with full_disk_told(IN_CACHE, TOKENIZED), writing(TOKENIZED) as folder:
        folder.mkdir()
        with executor(sum(path.stat().st_size for path in RAW.iterdir())) as pool:
            stats = tokenize(data, preparation, folder, pool)
        stage.write_json(folder / STATS, stats)
    for name, counts in stats["corpora"].items():
        print(f"{name}: {counts['kept']:,} of {counts['pairs']:,} pairs kept")
    tracker.metrics(
        {
            "pairs_raw": stats["pairs"],
            "pairs_kept": stats["kept"],
            **{f"dropped_{reason}": count for reason, count in stats["dropped"].items()},
            **{f"overlap_{name}": count for name, count in stats["overlap"].items()},
        }
    )
