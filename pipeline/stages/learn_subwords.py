"""Learn the subword vocabulary from the training text: data/tokenized -> data/subwords.

A training that starts from another model's weights has that model's subwords, and nothing is learned.
"""

from collections import Counter
from concurrent.futures import Executor
from pathlib import Path

from nmt import codec
from nmt.text import words
from nmt.text.parallel_text import Block, read_blocks
from nmt.text.settings import SubwordSettings
from nmt.training.settings import TrainingSettings
from pipeline.config.corpora import DataSettings
from pipeline.config.paths import SUBWORDS, tokenized
from pipeline.config.sections import check_versions, load_section
from pipeline.data import parent_folder
from pipeline.data.blocks import executor, map_in_order

LINES = 65_536  # per task of a worker


def count_block(block: Block) -> Counter[str]:
    """Count the words of a block; runs in a worker."""
    return words.count(block.lines())


def count_words(path: Path, pool: Executor) -> Counter[str]:
    """Count the words of a tokenised file. Memory grows with the number of different words, not with the text."""
    counts = Counter[str]()
    for block in map_in_order(pool, count_block, read_blocks(path, LINES)):
        counts.update(block)
    return counts


def run() -> None:
    """Write data/subwords, with the words of the source."""
    data = load_section("data", DataSettings)
    settings = load_section("subwords", SubwordSettings)
    check_versions("subword_nmt", "sentencepiece")
    start = load_section("training", TrainingSettings).start_from
    paths = [tokenized("train", language) for language in (data.source, data.target)[: 1 if start else 2]]
    with executor(sum(path.stat().st_size for path in paths)) as pool:
        source, *others = (count_words(path, pool) for path in paths)
    parent = None
    if start is not None:
        parent = parent_folder.find(start) / SUBWORDS.name
        ours, theirs = codec.load(parent)
        origin = f"of {start.folder}"
    else:
        ours, theirs = codec.learn(source, others[0], settings)
        different = source.keys() | (others[0].keys() if theirs is ours else ())
        origin = f"from {len(different):,} different words"
    codec.save(SUBWORDS, ours, theirs)
    words.save(SUBWORDS, source, data.source, parent)
    print(f"{ours.used_rows:,} subwords {origin}, {ours.size:,} with padding")
    if theirs is not ours:
        print(f"{theirs.used_rows:,} symbols of the target, {theirs.size:,} with padding")
