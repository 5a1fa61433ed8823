"""The CRAFT treebank, and round trips of its trees."""

import gzip
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from nmt.parsing.delinearisation import delinearise
from nmt.parsing.trees import LINEARISATIONS, TAG, Tree, linearise, normalise, read_trees

CRAFT = Path(__file__).resolve().parents[2].parent / "shared/real/craft"


def craft(part: str) -> Iterator[Tree]:
    """The trees of a part of the CRAFT treebank, as they are written there."""
    if not CRAFT.exists():
        pytest.skip("the CRAFT treebank stands in ../shared/real/craft beside the repository")
    with gzip.open(CRAFT / f"{part}.mrg.gz", "rt", encoding="utf-8", newline="\n") as lines:
        yield from read_trees(lines, part)


def retagged(tree: Tree, tags: Iterable[str]) -> Tree:
    """The same tree with a tag for each word."""
    remaining = iter(tags)

    def copy(node: Tree) -> Tree:
        if node.word is not None:
            return Tree(next(remaining), word=node.word)
        return Tree(node.label, tuple(map(copy, node.children)))

    return copy(tree)


def check_round_trips(trees: Iterable[Tree]) -> tuple[int, Counter[str]]:
    """The number of trees, each of which comes back, and what normalisation removed."""
    removed: Counter[str] = Counter()
    count = 0
    for raw in trees:
        tree = normalise(raw, removed)
        assert tree is not None
        words = tree.words()
        for name in LINEARISATIONS:
            back, repairs = delinearise(linearise(tree, name), words, name)
            assert not repairs
            assert str(back) == str(tree if name == "tensor2tensor" else retagged(tree, [TAG] * len(words)))
        count += 1
    return count, removed
