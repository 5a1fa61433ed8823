"""Treebanks as parallel text: the words of each tree beside the tree, both on one line."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from nmt.common.files import writing
from nmt.text.parallel_text import read_lines
from nmt.text.trees import normalise, read_trees


def split(source: Path, target: Path, name: str) -> tuple[int, Counter[str]]:
    """Replace `source` by sentences and `target`, a treebank, by its normalised trees, one a line.

    Returns the number of trees, and what was removed from them.

    `name` is the treebank's, for messages. Trees of traces alone are left out on both sides and counted. Raises
    InputError with file and line where the bracketing is wrong.
    """
    count, removed = 0, Counter[str]()
    with (
        writing(source) as sentences,
        writing(target) as trees,
        sentences.open("w", encoding="utf-8", newline="\n") as words,
        trees.open("w", encoding="utf-8", newline="\n") as brackets,
    ):
        for tree in read_trees(read_lines(target), name):
            if (bare := normalise(tree, removed)) is not None:
                words.write(" ".join(bare.words()) + "\n")
                brackets.write(f"{bare}\n")
                count += 1
    return count, removed
