"""Turn tokenised text into subword ids, sorted into length bins: data/tokenized -> data/binned.

The files have Arrow's IPC file format, for memory mapping: columns `src` and `tgt` (subword ids, EOS included) and
`line` (from 0, in the tokenised files). `train.<upper>.arrow` holds the pairs with at most `upper` target subwords
that fit no bin below, in the corpus's order; a bin without pairs has no file. `valid.arrow` holds every pair.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from nmt import codec
from nmt.common.files import sha256_of, write_json, writing
from nmt.errors import InputError, tell
from nmt.ids import EOS, UNK
from nmt.parsing.tokenizers import Symbols
from nmt.text.parallel_text import Block, read_lines, read_parallel_blocks
from nmt.text.settings import BinningSettings
from nmt.text.subwords import Subwords
from pipeline.config.corpora import DataSettings
from pipeline.config.paths import BINNED, BINNED_STATS, SUBWORDS, tokenized
from pipeline.config.sections import check_versions, load_section
from pipeline.data.blocks import executor, map_in_order

SIZES = ("pairs", "source_tokens", "target_tokens")
PAIRS = 8192  # per task of a worker
BATCH = 8192  # pairs of a record batch, or some more
WARN_UNKNOWN, MOST_UNKNOWN = 0.01, 0.2
"""Shares of <unk> among the training subwords: above the first a warning, above the second a refusal."""
SHORTEST = 8  # the upper length of the first bin, as in tensor2tensor: few sentences are shorter


def bin_uppers(settings: BinningSettings) -> list[int]:
    """Return the longest target length of each bin, EOS included; they grow by the factor `growth`, by 1 at least."""
    uppers = [min(SHORTEST, settings.max_length)]
    while uppers[-1] < settings.max_length:
        uppers.append(min(settings.max_length, max(uppers[-1] + 1, int(uppers[-1] * settings.growth))))
    return uppers


Encoded = tuple[dict[int, pa.RecordBatch], Counter[str]]
"""A block of pairs as ids, by upper length. The counts pairs, source_tokens, target_tokens (EOS included), too_long,
unknown (UNK on both sides) and the pairs of each bin, by upper length."""


@lru_cache(maxsize=1)
def _vocabularies(folder: Path, _version: str) -> tuple[Subwords, Subwords]:
    """Return the vocabularies of `folder`: one object per process, because they cache words."""
    return codec.load(folder)


def encode(folder: Path, version: str, uppers: Sequence[int], blocks: tuple[Block, Block]) -> Encoded:
    """Encode a block of pairs and sort it into bins; without uppers every pair is kept, under 0. Runs in a worker."""
    vocabularies = _vocabularies(folder, version)
    ids = pa.list_(pa.uint16() if max(side.size for side in vocabularies) < 2**16 else pa.uint32())
    rows: dict[int, list[tuple[list[int], list[int], int]]] = {}
    counts: Counter[str] = Counter()
    for line, pair in enumerate(zip(blocks[0].lines(), blocks[1].lines(), strict=True), start=blocks[0].first):
        source, target = ([*vocabulary.encode(text), EOS] for vocabulary, text in zip(vocabularies, pair, strict=True))
        upper = 0
        if uppers:
            if max(len(source), len(target)) > uppers[-1]:
                counts["too_long"] += 1
                continue
            upper = uppers[bisect_left(uppers, len(target))]
        rows.setdefault(upper, []).append((source, target, line))
        counts["unknown"] += source.count(UNK) + target.count(UNK)
    batches = {}
    for upper, of_bin in sorted(rows.items()):
        sources, targets, lines = zip(*of_bin, strict=True)
        columns = [pa.array(sources, ids), pa.array(targets, ids), pa.array(lines)]
        batches[upper] = pa.record_batch(columns, names=["src", "tgt", "line"])
        tokens = {"source_tokens": sum(map(len, sources)), "target_tokens": sum(map(len, targets))}
        counts.update({"pairs": len(lines), **tokens, str(upper): len(lines)})
    return batches, counts


def write_bins(
    sides: tuple[Path, Path], encode_block: Callable[[tuple[Block, Block]], Encoded], name: str, pool: Executor
) -> Counter[str]:
    """Encode a parallel text into the files `name` (with `{upper}`); return its counts.

    What a record batch holds follows from the blocks alone, so the bytes are the same for any pool.
    """
    counts: Counter[str] = Counter()
    files: dict[int, Any] = {}
    pending: dict[int, list[pa.RecordBatch]] = {}
    with ExitStack() as stack:
        for batches, of_block in map_in_order(pool, encode_block, read_parallel_blocks(*sides, PAIRS)):
            counts.update(of_block)
            for upper, batch in batches.items():
                if upper not in files:
                    out = stack.enter_context(Path(name.format(upper=upper)).open("wb"))
                    files[upper] = stack.enter_context(pa.ipc.new_file(out, batch.schema))
                pending.setdefault(upper, []).append(batch)
                if sum(block.num_rows for block in pending[upper]) >= BATCH:
                    files[upper].write_batch(pa.concat_batches(pending.pop(upper)))
        for upper, rest in pending.items():
            files[upper].write_batch(pa.concat_batches(rest))
    return counts


def binarize(
    sides: Mapping[str, tuple[Path, Path]], vocabulary: Path, settings: BinningSettings, folder: Path, pool: Executor
) -> dict[str, Any]:
    """Write the binned train and valid `sides` into `folder`, the same bytes for any pool; return their statistics.

    Raises InputError where no training pair is kept.
    """
    source, target = codec.load(vocabulary)
    # The version changes with the folder's content, so that a worker's cached subwords are the right ones.
    version = " ".join(sha256_of(path) for path in sorted(vocabulary.rglob("*")) if path.is_file())
    uppers = bin_uppers(settings)
    encode_block = partial(encode, vocabulary.resolve(), version)
    train = write_bins(sides["train"], partial(encode_block, uppers), str(folder / "train.{upper:05d}.arrow"), pool)
    if not train["pairs"]:
        limit = f"{settings.max_length} subwords on a side, binning.max_length"
        raise InputError(f"each of the {train['too_long']:,} training pairs has more than {limit}: raise it")
    valid = write_bins(sides["valid"], partial(encode_block, ()), str(folder / "valid.arrow"), pool)
    return {
        **{name: train[name] for name in SIZES},
        "dropped": {"too_long": train["too_long"]},
        "vocabulary": source.size,
        **({} if target is source else {"target_vocabulary": target.size}),
        # Of the subwords of both sides, EOS not counted.
        "out_of_vocabulary": {
            name: counts["unknown"] / max(1, counts["source_tokens"] + counts["target_tokens"] - 2 * counts["pairs"])
            for name, counts in (("train", train), ("valid", valid))
        },
        "histogram": {str(upper): train[str(upper)] for upper in uppers},
        "valid": {name: valid[name] for name in SIZES},
    }


def check_unknown(share: float, sides: Sequence[Path]) -> None:
    """Print the share of <unk> among the training subwords, and warn; raise InputError where it is too large.

    Only a fine-tuning has some: the parent's lack characters or a tree's symbols; the most frequent are named.
    """
    print(f"{share:.2%} of the training subwords are <unk>")
    if share <= WARN_UNKNOWN:
        return
    missing = Counter[str]()
    for path, vocabulary in zip(sides, codec.load(SUBWORDS), strict=True):
        parts: Callable[[str], Iterable[str]] = str.split if isinstance(vocabulary, Symbols) else iter
        counts = Counter(part for line in islice(read_lines(path), PAIRS) for part in parts(line))
        missing.update({part: count for part, count in counts.items() if UNK in vocabulary.encode(part)})
    named = " ".join(part for part, _ in missing.most_common(10)) or "characters of later lines"
    problem = f"{share:.1%} of the training subwords are <unk>: the parent's lack {named}"
    if share > MOST_UNKNOWN:
        raise InputError(f"{problem}: start from a parent that has them, or remove training.start_from")
    tell(f"warning: {problem}")


def run() -> None:
    data = load_section("data", DataSettings)
    settings = load_section("binning", BinningSettings)
    check_versions("subword_nmt", "sentencepiece")
    sides = {role: (tokenized(role, data.source), tokenized(role, data.target)) for role in ("train", "valid")}
    with writing(BINNED, folder=True) as folder:
        with executor(sum(path.stat().st_size for path in sides["train"])) as pool:
            stats = binarize(sides, SUBWORDS, settings, folder, pool)
        check_unknown(stats["out_of_vocabulary"]["train"], sides["train"])
        write_json(folder / BINNED_STATS.name, stats)
    print(f"{stats['pairs']:,} pairs, {stats['dropped']['too_long']:,} dropped as too long")
