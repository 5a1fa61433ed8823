"""Tokenise and filter the text: data/raw -> data/tokenized.

Training corpora are joined in the catalog's order. Dropped pairs are counted by corpus and reason, and so are kept
training pairs that are also in the validation or the test set (both sides equal after tokenisation). The validation
set is tokenised and never filtered; the test set stays raw.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from nmt.common.files import writing
from nmt.config import FilterSettings, InputError, TokenizerSettings
from nmt.text.codec import Tokenizer, tokenizers
from nmt.text.parallel_text import REASONS, Block, drop_reason, read_parallel_blocks
from pipeline.common import stage
from pipeline.common.paths import RAW, TOKENIZED
from pipeline.common.settings import DataSettings, PreparationSettings, VersionSettings, load_section
from pipeline.common.stage import Tracker
from pipeline.corpora.disk import IN_CACHE, explain_full_disk
from pipeline.parallel.parallel_map import executor, map_in_order

PAIRS = 8192  # per task of a worker


Prepared = tuple[bytes, bytes, Counter[str]]
"""A block of pairs, tokenised and filtered, as the text of both files, and the counts pairs (before filtering), kept,
source_tokens, target_tokens, dropped_<reason> and overlap_<set>."""
Work = Callable[[tuple[Block, Block]], Prepared]


@lru_cache(maxsize=4)
def _tokenizers(source: str, target: str, settings: TokenizerSettings) -> tuple[Tokenizer, Tokenizer]:
    """Return the tokenizers of both sides: one object per process, because they cache words."""
    return tokenizers(source, target, settings)


def _digest(source: str, target: str) -> bytes:
    return hashlib.blake2b(f"{source}\n{target}".encode(), digest_size=8).digest()


def _lines(text: bytes) -> list[str]:
    return text.decode().split("\n")[:-1]


def prepare(
    languages: tuple[str, str],
    tokenizer: TokenizerSettings,
    filters: FilterSettings | None,
    held_out: Mapping[str, frozenset[bytes]],
    blocks: tuple[Block, Block],
) -> Prepared:
    """Tokenise and filter a block of pairs; runs in a worker. Raises InputError at invalid UTF-8.

    Without filters every pair is kept. `held_out`: set -> digests of pairs that training should not contain.
    """
    of_source, of_target = _tokenizers(*languages, tokenizer)
    counts = Counter(pairs=len(blocks[0]))
    sources: list[str] = []
    targets: list[str] = []
    for source_line, target_line in zip(blocks[0].lines(), blocks[1].lines(), strict=True):
        source = of_source.tokenize(of_source.normalize(source_line))
        target = of_target.tokenize(of_target.normalize(target_line))
        reason = drop_reason(source, target, filters) if filters else None
        if reason is not None:
            counts[f"dropped_{reason}"] += 1
            continue
        sources.append(source)
        targets.append(target)
        if held_out:
            digest = _digest(source, target)
            counts.update(f"overlap_{name}" for name, digests in held_out.items() if digest in digests)
    counts["kept"] = len(sources)
    for name, side in (("source_tokens", sources), ("target_tokens", targets)):
        counts[name] = sum([len(line.split()) for line in side])
    # Joined here: workers share this work, and the main process only writes.
    source_text, target_text = ("".join([line + "\n" for line in side]).encode() for side in (sources, targets))
    return source_text, target_text, counts


def tokenize(data: DataSettings, preparation: PreparationSettings, folder: Path, pool: Executor) -> dict[str, Any]:
    """Write the tokenised text into `folder`, the same bytes for any pool; return its statistics.

    Raises InputError for sides of different length, invalid UTF-8, an empty corpus, and where no pair is kept.
    """
    languages = (data.source, data.target)

    def prepared(work: Work, name: str) -> Iterator[Prepared]:
        sides = [RAW / f"{name}.{language}" for language in languages]
        return map_in_order(pool, work, read_parallel_blocks(sides[0], sides[1], PAIRS))

    def write(role: str, names: Iterable[str], work: Work) -> dict[str, Counter[str]]:
        """Write texts one after another into the files of `role`; return the counts of each."""
        found: dict[str, Counter[str]] = {}
        paths = [folder / f"{role}.{language}" for language in languages]
        with paths[0].open("wb") as source, paths[1].open("wb") as target:
            for name in names:
                found[name] = Counter()
                for source_text, target_text, counts in prepared(work, f"{role}.{name}"):
                    source.write(source_text)
                    target.write(target_text)
                    found[name].update(counts)
        return found

    unfiltered = partial(prepare, languages, preparation.tokenizer, None, {})
    held_out = {
        role: frozenset(
            _digest(*pair)
            for source_text, target_text, _ in prepared(unfiltered, f"{role}.{text.name}")
            for pair in zip(_lines(source_text), _lines(target_text), strict=True)
        )
        for role, text in (("valid", data.valid), ("test", data.test))
    }
    valid = write("valid", [data.valid.name], unfiltered)[data.valid.name]
    filtered = partial(prepare, languages, preparation.tokenizer, preparation.filters, held_out)
    corpora = write("train", [text.name for text in data.train], filtered)
    total = sum(corpora.values(), Counter[str]())
    if not total["kept"]:
        dropped = ", ".join(f"{reason}: {count:,}" for reason in REASONS if (count := total[f"dropped_{reason}"]))
        raise InputError(
            f"none of the {total['pairs']:,} training pairs passes preparation.filters ({dropped}): loosen them"
        )
    return {
        **_statistics(total),
        "corpora": {name: _statistics(counts) for name, counts in corpora.items()},
        "valid": {name: valid[name] for name in ("pairs", "source_tokens", "target_tokens")},
    }


def _statistics(counts: Counter[str]) -> dict[str, Any]:
    """Return a training corpus' counts for stats.json, with every reason and every set, zeros too."""
    return {
        **{name: counts[name] for name in ("pairs", "kept")},
        "dropped": {reason: counts[f"dropped_{reason}"] for reason in REASONS},
        "overlap": {name: counts[f"overlap_{name}"] for name in ("valid", "test")},
        **{name: counts[name] for name in ("source_tokens", "target_tokens")},
    }


def run(tracker: Tracker) -> None:
    """Write data/tokenized."""
    data = load_section("data", DataSettings)
    preparation = load_section("preparation", PreparationSettings)
    stage.check_versions({"sacremoses": load_section("versions", VersionSettings).sacremoses})
    with explain_full_disk(IN_CACHE, TOKENIZED), writing(TOKENIZED) as folder:
        folder.mkdir()
        with executor(sum(path.stat().st_size for path in RAW.iterdir())) as pool:
            stats = tokenize(data, preparation, folder, pool)
        stage.write_json(folder / "stats.json", stats)
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
