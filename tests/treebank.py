"""The CRAFT treebank, and round trips of its trees."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from nmt.text.delinearisation import delinearise
from nmt.text.trees import LINEARISATIONS, TAG, Tree, linearise, normalise, read_trees


def craft(real: Path, part: str) -> Iterator[Tree]:
    """The trees of a part of the CRAFT treebank, as they are written there."""
    if not (real / "craft").exists():
        pytest.skip("the CRAFT treebank (../shared/real/craft) is not here")
    with gzip.open(real / f"craft/{part}.mrg.gz", "rt", encoding="utf-8", newline="\n") as lines:
        yield from read_trees(lines, part)


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
            assert str(back) == str(tree if name == "tensor2tensor" else tree.retagged([TAG] * len(words)))
        count += 1
    return count, removed
