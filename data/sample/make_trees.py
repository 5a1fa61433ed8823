"""Make the archive of the embedded treebank: synthetic English sentences with constituency trees.

    python data/sample/make_trees.py [OUT]

OUT is this folder unless given. The sentences come from the grammar beside this file. Training never combines the pairs
of constructions in HELD_OUT; a third of the validation and test sentences do.
"""

from __future__ import annotations

import itertools
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from grammar.sampling import Sampler
from make_sample import write

SEED = 2014
TREES = 10_000
"""Of the training set."""
HELD_BACK = 500
"""Sentences of the validation set, and of the test set."""
NOVEL = 46
"""Sentences of both sets with one pair of constructions of HELD_OUT: 23 in each."""
OFTEN = 4
"""Every word form of the validation and test sets stands in this many training sentences or more."""
CONSTRUCTIONS = {
    "particle": r"\(RP ",
    "negation": r"\(RB (?:not|never)\)",
    "question": r"\(\. \?\)",
    "hyphen": r"\((?:JJ|NNS?) \S+-",
    "number": r"\(CD |\(JJ many\)|\(DT some\)",
    "future": r"\(VBG going\)",
    "genitive": r"\(POS ",
    "past": r"\(VBD ",
    "modal": r"\(MD |wants?\) \(S ",
    "fronted": r"^\(S \((?:SBAR|PP|ADVP|NP (?:\(\S+ \S+\) ?)+\) \(NP)",
    "quote": r"\(`` ",
    "possessive": r"\(PRP\$ ",
    "comparison": r"\(ADJP (?:\(RBR? (?:more|as)\)|\(JJR)",
}
"""How each shows in a tree."""
HELD_OUT = (
    ("particle", "negation"),
    ("question", "hyphen"),
    ("number", "future"),
    ("genitive", "past"),
    ("modal", "fronted"),
    ("quote", "negation"),
    ("possessive", "comparison"),
)


def combines(tree: str, pair: tuple[str, str]) -> bool:
    """Return whether the tree has both constructions."""
    return all(re.search(CONSTRUCTIONS[name], tree) for name in pair)


def words(tree: str) -> list[str]:
    """Return the words of a tree, without its marks."""
    return re.findall(r" (\w[^\s()]*)\)", tree)


def sentences(seed: int) -> Iterator[tuple[str, tuple[str, str] | None]]:
    """Yield trees without end, each sentence once, with the first pair of HELD_OUT that it combines."""
    sampler = Sampler(seed)
    seen: set[str] = set()
    while True:
        tree = sampler.sentence()
        sentence = " ".join(words(tree))
        if sentence not in seen:
            seen.add(sentence)
            yield tree, next((pair for pair in HELD_OUT if combines(tree, pair)), None)


def splits(seed: int = SEED) -> dict[str, list[str]]:
    """Return the trees of `train`, `valid` and `test`; none of their sentences is in two of them."""
    source = sentences(seed)
    train = list(itertools.islice((tree for tree, pair in source if pair is None), TREES))
    known = Counter(form for tree in train for form in set(words(tree)))
    # As many of each pair; None: the sentences that combine nothing new.
    wanted: dict[tuple[str, str] | None, int] = dict.fromkeys(HELD_OUT, NOVEL)
    wanted[None] = 2 * HELD_BACK - len(HELD_OUT) * NOVEL
    chosen: dict[tuple[str, str] | None, list[str]] = {pair: [] for pair in wanted}
    while any(len(chosen[pair]) < wanted[pair] for pair in wanted):
        tree, pair = next(source)
        if len(chosen[pair]) < wanted[pair] and all(known[form] >= OFTEN for form in words(tree)):
            chosen[pair].append(tree)
    held_back = list(itertools.chain(*chosen.values()))
    parts = {"train": train, "valid": held_back[1::2], "test": held_back[::2]}
    for name in ("valid", "test"):
        random.Random(seed).shuffle(parts[name])  # noqa: S311 (text, no secret)
    return parts


def members(parts: Mapping[str, list[str]]) -> dict[str, dict[str, bytes]]:
    """Return the members of each archive."""
    trees = {
        f"trees/{name}.mrg": "".join(f"( {tree} )\n" for tree in of_part).encode() for name, of_part in parts.items()
    }
    return {"trees.tgz": trees}


if __name__ == "__main__":
    write(members(splits()), Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent)
