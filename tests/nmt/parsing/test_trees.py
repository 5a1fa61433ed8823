"""Trees: read strictly, normalised, linearised both ways and back; what a model writes becomes a tree by rules."""

from collections import Counter
from collections.abc import Sequence
from itertools import product
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from refusals import check_refusal

from nmt.parsing.delinearisation import ALONE, LEAST, _partners, align, delinearise
from nmt.parsing.trees import LINEARISATIONS, TAG, Linearisation, Tree, bare, escape, linearise, normalise, read_trees

JOHN = "(S (NP (NNP John)) (VP (VBZ has) (NP (DT a) (NN dog))) (. .))"


def read(*lines: str) -> list[Tree]:
    return list(read_trees(lines, "bank.mrg"))


def untagged(tree: Tree) -> Tree:
    """The same tree with XX for every tag, as vinyals writes it."""
    if tree.word is not None:
        return Tree(TAG, word=tree.word)
    return Tree(tree.label, tuple(map(untagged, tree.children)))


tags = st.sampled_from(["NN", "DT", "XX", ",", "-LRB-", "PRP$"])
labels = st.sampled_from(["S", "NP", "VP", "X", "WHNP"])
leaves = st.builds(Tree, tags, word=st.text("ab-/)(X", min_size=1).map(escape))
trees = st.recursive(leaves, lambda part: st.builds(Tree, labels, st.lists(part, min_size=1).map(tuple)), max_leaves=20)
SYMBOLS = ["(S", "(NP", ")S", ")NP", "XX", "S", "NP", "/S", "/NP", "DT", "/", "(", ")", "<unk>"]


@pytest.mark.parametrize(
    "lines",
    [
        [JOHN],
        [f"( {JOHN} )"],
        [f"({JOHN})\r"],
        ["", "( (S (NP (NNP John))", "     (VP (VBZ has)", "\t(NP (DT a) (NN dog))) (. .)) )", ""],
    ],
)
def test_a_tree_is_read_and_written(lines: list[str]) -> None:
    """The outer bracket may lack its label or be absent."""
    (tree,) = read(*lines)
    assert str(tree) == JOHN
    assert tree.words() == ["John", "has", "a", "dog", "."]
    assert [node.label for node in tree.leaves()] == ["NNP", "VBZ", "DT", "NN", "."]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["(S (NP (NN dog))", "(S (NN cat))"], "bank.mrg, line 2: the tree that begins on line 1 lacks 1 of its"),
        (["", "(S (NP (NN dog)"], "line 2: the tree that begins on line 2 lacks 2 of its closing brackets: add them"),
        (["", "(S (NN dog)))"], r"line 2: `\)` breaks the bracketing: write each tree as"),
        (["dog"], "line 1: `dog` breaks"), (["(S (CD 1 1/2))"], "`1/2` breaks"),
        (["(S ( dog))"], r"`\)` breaks"), (["( dog)"], r"`\)` breaks"), (["()"], r"`\)` breaks"),
        (["( (S (NN dog)) (S (NN cat)) )"], r"`\)` breaks"), (["(S (NP))"], r"`\)` breaks"),
        (["(S the (NN dog))"], r"`\(NN` breaks"), (["(S (NN dog) barks)"], "`barks` breaks"),
    ],
)  # fmt: skip
def test_a_line_that_breaks_the_bracketing_is_named(lines: list[str], message: str) -> None:
    check_refusal(message, read, *lines)


def test_traces_function_tags_and_the_outer_label_are_removed_and_counted() -> None:
    removed: Counter[str] = Counter()
    bank = (
        "(TOP (S (NP-SBJ-1 (PRP He)) (VP (VBD was) (VP (VBN seen) (NP (-NONE- *-1))"
        " (SBAR (-NONE- 0) (S (-NONE- *T*-2))) (PRN=3 (-LRB- -LRB-) (NP-TMP (NN today)) (-RRB- -RRB-)))) (. .)))"
    )
    tree = normalise(*read(bank), removed)
    kept = "(S (NP (PRP He)) (VP (VBD was) (VP (VBN seen) (PRN (-LRB- -LRB-) (NP (NN today)) (-RRB- -RRB-)))) (. .))"
    assert str(tree) == kept
    assert removed == {"traces": 3, "constituents of traces alone": 3, "function tags": 3, "outer labels": 1}
    assert [bare(label) for label in ("NP-SBJ-1", "NP=2", "-LRB-", "PRP$")] == ["NP", "NP", "-LRB-", "PRP$"]


def test_both_linearisations_of_a_tree() -> None:
    (tree,) = read(JOHN)
    assert " ".join(linearise(tree, "vinyals")) == "(S (NP XX )NP (VP XX (NP XX XX )NP )VP XX )S"
    assert " ".join(linearise(tree, "tensor2tensor")) == "S NP NNP /NP VP VBZ NP DT NN /NP /VP . /S"


@pytest.mark.parametrize("name", LINEARISATIONS)
@given(tree=trees)
def test_every_tree_comes_back_from_its_bracketing_and_linearisation(name: Linearisation, tree: Tree) -> None:
    assert read(str(tree)) == [tree]
    expected = untagged(tree) if name == "vinyals" else tree
    assert delinearise(linearise(tree, name), tree.words(), name) == (expected, Counter())


@pytest.mark.parametrize("name", LINEARISATIONS)
@given(symbols=st.lists(st.sampled_from(SYMBOLS)), words=st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=8))
def test_every_output_becomes_a_tree_with_all_words(name: Linearisation, symbols: list[str], words: list[str]) -> None:
    tree, repairs = delinearise(symbols, words, name, {"/S", "/NP"})
    assert tree.words() == words
    assert read(str(tree)) == [tree]
    assert min(repairs.values(), default=1) > 0
    if not repairs:
        assert linearise(tree, name) == symbols


@pytest.mark.parametrize(
    ("symbols", "expected", "repairs"),
    [
        ("(S (NP XX )NP (VP XX )VP )S", "(S (NP (XX a)) (VP (XX b)))", {}),
        ("(S (NP XX )NP what (VP XX )VP )S", "(S (NP (XX a)) (VP (XX b)))", {"unknown symbol": 1}),
        ("(S (NP XX (VP XX )VP )S", "(S (NP (XX a) (VP (XX b))))", {"closing bracket missing inside": 1}),
        ("(S (NP XX )NP )PP (VP XX )VP )S", "(S (NP (XX a)) (VP (XX b)))", {"closing bracket surplus": 1}),
        ("(S XX XX XX )S", "(S (XX a) (XX b))", {"word surplus": 1}),
        ("(S (VP XX XX", "(S (VP (XX a) (XX b)))", {"closing bracket missing at the end": 2}),
        ("(S (NP XX )NP )S", "(S (NP (XX a)) (XX b))", {"word missing": 1}),
        ("(S (NP XX", "(S (NP (XX a)) (XX b))", {"word missing": 1, "closing bracket missing at the end": 2}),
        ("(S XX XX (NP )NP )S", "(S (XX a) (XX b))", {"constituent without words": 1}),
        ("(NP XX )NP (VP XX )VP", "(TOP (NP (XX a)) (VP (XX b)))", {"not one tree": 1}),
        ("", "(TOP (XX a) (XX b))", {"word missing": 2, "not one tree": 1}),
        ("XX", "(TOP (XX a) (XX b))", {"word missing": 1, "not one tree": 1}),
    ],
)
def test_each_rule_for_malformed_output(symbols: str, expected: str, repairs: dict[str, int]) -> None:
    tree, counted = delinearise(symbols.split(), ["a", "b"], "vinyals")
    assert (str(tree), counted) == (expected, repairs)


def weights(looked: str) -> NDArray[np.floating]:
    """Attention of symbols to four words: each looked at the word of this number or, for "-", at none above others."""
    rows = [np.full(4, 0.02) if word == "-" else np.where(np.arange(4) == int(word), 0.9, 0.01) for word in looked]
    return np.array(rows)


@pytest.mark.parametrize(
    ("symbols", "looked", "expected", "repairs"),
    [
        ("S NP DT NN /NP VP VBZ /VP /S", "000223333", "S NP DT XX NN /NP VP VBZ /VP /S", {"word missing": 1}),
        ("S NP DT JJ NN NN /NP VP VBZ /VP /S", "0001-223333", "S NP DT JJ NN /NP VP VBZ /VP /S", {"word surplus": 1}),
        ("S VP VBZ /VP /S", "33333", "S VP XX XX XX VBZ /VP /S", {"word missing": 3}),
        # The builder appends the words that are missing at the end.
        ("S NP DT NN /NP /S", "000223", "S NP DT XX NN /NP /S", {"word missing": 1}),
        ("S", "-", "S", {}),
    ],
)
def test_words_are_aligned_by_attention(symbols: str, looked: str, expected: str, repairs: dict[str, int]) -> None:
    words, known = ["the", "big", "dog", "runs"], {"/S", "/NP", "/VP"}
    aligned = align(symbols.split(), words, "tensor2tensor", known, lambda: weights(looked))
    assert (" ".join(aligned[0]), aligned[1]) == (expected, repairs)


def test_an_output_with_as_many_words_as_the_sentence_is_left_as_it_is() -> None:
    attention = Mock(side_effect=AssertionError("it takes a forward pass"))
    assert align(["(S", "XX", ")S"], ["a"], "vinyals", (), attention) == (["(S", "XX", ")S"], Counter())


@given(seed=st.integers(0, 10_000), symbols=st.integers(0, 4), words=st.integers(1, 4))
def test_the_alignment_is_the_best_of_all_in_order(seed: int, symbols: int, words: int) -> None:
    gains = np.log(np.random.default_rng(seed).dirichlet(np.ones(words), symbols) + LEAST)

    def total(partners: Sequence[int | None]) -> float:
        taken = [(row, word) for row, word in enumerate(partners) if word is not None]
        return sum(gains[pair] for pair in taken) - ALONE * (symbols + words - 2 * len(taken))

    choices = product([None, *range(words)], repeat=symbols)
    in_order = (c for c in choices if (taken := [w for w in c if w is not None]) == sorted(set(taken)))
    chosen = _partners(gains)
    assert [word for word in chosen if word is not None] == sorted({word for word in chosen if word is not None})
    assert total(chosen) == pytest.approx(max(map(total, in_order)))


def test_a_very_deep_tree_is_handled() -> None:
    symbols = ["(NP"] * 5000 + ["XX"] + [")NP"] * 5000
    tree, repairs = delinearise(symbols, ["a"], "vinyals")
    assert not repairs
    assert linearise(*read(str(tree)), "vinyals") == symbols
