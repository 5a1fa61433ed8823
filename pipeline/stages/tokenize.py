"""Tokenise and filter the text: data/raw -> data/tokenized.

Training corpora are joined in the catalog's order, each pair as often as its corpus' weight says. Dropped pairs are
counted by corpus and reason. The lines of the validation and the test set whose source, target or both are in a kept
training pair, too (equal after tokenisation), are counted by corpus and in sum. The validation set is tokenised and
never filtered; the test set stays raw.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

from nmt.codec import tokenizers
from nmt.common.files import write_json, writing
from nmt.errors import InputError
from nmt.text.moses import MOST_CHANGED, SAMPLE, Moses
from nmt.text.parallel_text import REASONS, Block, decode, drop_reason, read_lines, read_parallel_blocks
from nmt.text.settings import FilterSettings, PreparationSettings, TokenizerSettings
from pipeline.config.corpora import DataSettings
from pipeline.config.paths import RAW, TOKENIZED, raw, tokenized
from pipeline.config.sections import check_versions, load_section
from pipeline.data.blocks import executor, map_in_order

PAIRS = 8192  # per task of a worker
KINDS = ("source", "target", "pair")  # what of a line may be in the training text, too

Prepared = tuple[bytes, bytes, Counter[str], set[bytes]]
"""A block of pairs, tokenised and filtered, as the text of both files; the counts pairs (before filtering), kept,
source_tokens, target_tokens and dropped_<reason>; the digests that the validation or the test set has, too."""
Work = Callable[[tuple[Block, Block]], Prepared]
_tokenizers = lru_cache(maxsize=4)(tokenizers)  # one object of each per process, because they cache words


def _digests(source: str, target: str) -> list[bytes]:
    contents = f"{source}\n", f"\n{target}", f"{source}\n{target}"
    return [hashlib.blake2b(content.encode(), digest_size=8).digest() for content in contents]


def prepare(
    languages: tuple[str, str],
    tokenizer: TokenizerSettings,
    filters: FilterSettings | None,
    held_out: frozenset[bytes],
    blocks: tuple[Block, Block],
) -> Prepared:
    """Tokenise and filter a block of pairs; runs in a worker. Raises InputError at invalid UTF-8.

    Without filters every pair is kept. `held_out`: digests that training should not contain.
    """
    of_source, of_target = _tokenizers(*languages, tokenizer)
    counts = Counter(pairs=len(blocks[0]))
    sources: list[str] = []
    targets: list[str] = []
    seen: set[bytes] = set()
    for source_line, target_line in zip(blocks[0].lines(), blocks[1].lines(), strict=True):
        source = of_source.tokenize(source_line)
        target = of_target.tokenize(target_line)
        reason = drop_reason(source, target, filters, languages) if filters else None
        if reason is not None:
            counts[f"dropped_{reason}"] += 1
            continue
        sources.append(source)
        targets.append(target)
        if held_out:
            seen |= held_out.intersection(_digests(source, target))
    counts["kept"] = len(sources)
    for name, side in (("source_tokens", sources), ("target_tokens", targets)):
        counts[name] = sum([len(line.split()) for line in side])
    # Joined here: workers share this work, and the main process only writes.
    source_text, target_text = ("".join([line + "\n" for line in side]).encode() for side in (sources, targets))
    return source_text, target_text, counts, seen


def tokenize(data: DataSettings, preparation: PreparationSettings, folder: Path, pool: Executor) -> dict[str, Any]:
    """Write the tokenised text into `folder`, the same bytes for any pool; return its statistics.

    Raises InputError for sides of different length, invalid UTF-8, an empty corpus, and where no pair is kept.
    """
    languages = (data.source, data.target)

    def prepared(work: Work, role: str, name: str) -> Iterator[Prepared]:
        source, target = (raw(role, name, language) for language in languages)
        return map_in_order(pool, work, read_parallel_blocks(source, target, PAIRS))

    def write(role: str, weights: Mapping[str, int], work: Work) -> dict[str, tuple[Counter[str], set[bytes]]]:
        """Write texts by their weights into the files of `role`; return the counts and held-out digests of each."""
        counted: dict[str, tuple[Counter[str], set[bytes]]] = {}
        paths = [folder / tokenized(role, language).name for language in languages]
        with paths[0].open("wb") as source, paths[1].open("wb") as target:
            for name, weight in weights.items():
                counted[name] = Counter(), set()
                for source_text, target_text, counts, seen in prepared(work, role, name):
                    source.write(source_text * weight)
                    target.write(target_text * weight)
                    counted[name][0].update(counts)
                    counted[name][1].update(seen)
        return counted

    unfiltered = partial(prepare, languages, preparation.tokenizer, None, frozenset())
    held_out = {
        role: [
            _digests(*pair)
            for source_text, target_text, *_ in prepared(unfiltered, role.partition(".")[0], text.name)
            for pair in zip(decode(source_text, text.name), decode(target_text, text.name), strict=True)
        ]
        for role, text in data.held_out.items()
    }
    valid, _ = write("valid", {data.valid.name: 1}, unfiltered)[data.valid.name]
    everything = frozenset(digest for lines in held_out.values() for line in lines for digest in line)
    filtered = partial(prepare, languages, preparation.tokenizer, preparation.filters, everything)
    corpora = write("train", {text.name: text.weight for text in data.train}, filtered)
    total = sum((counts for counts, _ in corpora.values()), Counter[str]())
    if not total["kept"]:
        reasons = why({reason: total[f"dropped_{reason}"] for reason in REASONS})
        none = f"none of the {total['pairs']:,} training pairs passes preparation.filters"
        raise InputError(f"{none} ({reasons}): loosen them")
    return {
        **statistics(total, set().union(*(seen for _, seen in corpora.values())), held_out),
        "corpora": {name: statistics(*counted_text, held_out) for name, counted_text in corpora.items()},
        "valid": {name: valid[name] for name in ("pairs", "source_tokens", "target_tokens")},
    }


def why(dropped: Mapping[str, int]) -> str:
    """Return how many pairs were dropped by reason: `198: ratio, 2: empty`."""
    return ", ".join(f"{count:,}: {reason}" for reason, count in dropped.items() if count)


def check_moses(data: DataSettings, tokenizer: TokenizerSettings) -> None:
    """Raise InputError where Moses cannot restore a language's text: its translations would not be as it is written."""
    if tokenizer.tokenizer != "moses":
        return
    for language in (data.source, data.target):
        paths = [raw("train", text.name, language) for text in data.train]
        sample = [line for path in paths for line in islice(read_lines(path), SAMPLE)]
        changed = Moses(language, tokenizer).changed(sample)
        if changed > MOST_CHANGED:
            raise InputError(
                f"Moses' tokenizer and detokenizer change {changed:.0%} of the lines in {language} "
                f"({RAW}/train.*.{language}): compose its letters (preparation.tokenizer.compose: true), or set "
                "preparation.tokenizer.tokenizer to none and subwords.kind to wordpieces, which change none"
            )


def statistics(
    counts: Counter[str], seen: set[bytes], held_out: Mapping[str, Iterable[Sequence[bytes]]]
) -> dict[str, Any]:
    """Return training text's counts for stats.json, with every reason and every held-out set, zeros too."""
    return {
        **{name: counts[name] for name in ("pairs", "kept")},
        "dropped": {reason: counts[f"dropped_{reason}"] for reason in REASONS},
        "overlap": {
            role: {kind: sum(line[at] in seen for line in lines) for at, kind in enumerate(KINDS)}
            for role, lines in held_out.items()
        },
        **{name: counts[name] for name in ("source_tokens", "target_tokens")},
    }


def run() -> None:
    data = load_section("data", DataSettings)
    preparation = load_section("preparation", PreparationSettings)
    check_versions("sacremoses")
    check_moses(data, preparation.tokenizer)
    with writing(TOKENIZED, folder=True) as folder:
        with executor(sum(path.stat().st_size for path in RAW.iterdir())) as pool:
            stats = tokenize(data, preparation, folder, pool)
        write_json(folder / "stats.json", stats)
    for text, (name, counts) in zip(data.train, stats["corpora"].items(), strict=True):
        dropped = f" ({why(counts['dropped'])})" if counts["kept"] < counts["pairs"] else ""
        print(
            f"{name}: {counts['kept']:,} of {counts['pairs']:,} pairs kept{dropped}"
            + f", {text.weight} times" * (text.weight > 1)
        )
    for role, shared_lines in stats["overlap"].items():
        if any(shared_lines.values()):
            shared = ", ".join(f"{kind} {count:,}" for kind, count in shared_lines.items())
            print(f"{role} set: lines that are in the training text, too: {shared}")
