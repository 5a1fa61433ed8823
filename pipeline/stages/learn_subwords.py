"""Learn the joint subword vocabulary from the training text: data/tokenized -> data/subwords."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Executor
from pathlib import Path

from nmt.config import SubwordSettings
from nmt.text import subwords
from nmt.text.parallel_text import Block, read_blocks
from pipeline import stage
from pipeline.config.settings import DataSettings, VersionSettings, load_section
from pipeline.corpora.blocks import executor, ordered
from pipeline.corpora.disk import IN_CACHE, full_disk_told
from pipeline.stage import Tracker

TOKENIZED = Path("data/tokenized")
SUBWORDS = Path("data/subwords")

LINES = 65_536
"""Lines that a worker is handed at once."""


def count_block(block: Block) -> Counter[str]:
    """How often each word stands in a block; runs in a worker. Words are what spaces separate."""
    return Counter(" ".join(block.lines()).split(" "))


def count_words(paths: Iterable[Path], pool: Executor) -> Counter[str]:
    """How often each word stands in tokenised files. Memory follows the different words, not the text."""
    counts: Counter[str] = Counter()
    for path in paths:
        for block in ordered(pool, count_block, read_blocks(path, LINES)):
            counts.update(block)
    # What stands between two spaces that follow each other is no word.
    del counts[""]
    return counts


def run(tracker: Tracker) -> None:
    """Run the stage."""
    data = load_section("data", DataSettings)
    settings = load_section("subwords", SubwordSettings)
    versions = load_section("versions", VersionSettings)
    stage.check_versions({"subword_nmt": versions.subword_nmt, "sentencepiece": versions.sentencepiece})
    paths = [TOKENIZED / f"train.{language}" for language in (data.source, data.target)]
    with executor(sum(path.stat().st_size for path in paths)) as pool:
        counts = count_words(paths, pool)
    learned = subwords.learn(counts, settings)
    with full_disk_told(IN_CACHE, SUBWORDS):
        learned.save(SUBWORDS)
    print(f"{learned.unpadded:,} subwords, {learned.size:,} with padding, from {len(counts):,} different words")
    tracker.metrics({"words": len(counts), "subwords": learned.unpadded, "vocabulary": learned.size})
