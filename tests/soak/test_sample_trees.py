"""The embedded treebank, made anew: its archive, its splits, and trees worked by hand."""

import itertools
import sys
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from nmt.parsing.delinearisation import delinearise
from nmt.parsing.trees import LINEARISATIONS, linearise, normalise, read_trees
from tests.soak.treebank import retagged

SAMPLE = Path(__file__).resolve().parents[2] / "data/sample"
sys.path.insert(0, str(SAMPLE))

import make_trees  # noqa: E402 - from the path above
from grammar.trees import Clause, NounPhrase, clause, question  # noqa: E402 - from the path above
from grammar.words import Noun, Verb, load  # noqa: E402 - from the path above

LEXICON = load()
Splits = dict[str, list[str]]


@pytest.fixture(scope="module")
def splits() -> Splits:
    return make_trees.splits()


def test_the_archive_holds_what_the_generator_makes(splits: Splits) -> None:
    with tarfile.open(SAMPLE / "trees.tgz") as tar:
        files = {entry.name: tar.extractfile(entry) for entry in tar}
        assert {name: file and file.read() for name, file in files.items()} == make_trees.members(splits)["trees.tgz"]


def test_counts(splits: Splits) -> None:
    assert {name: len(trees) for name, trees in splits.items()} == {"train": 10_000, "valid": 500, "test": 500}
    lengths = [len(make_trees.words(tree)) for tree in splits["train"]]
    assert 8 <= sum(lengths) / len(lengths) <= 12


def test_trees_are_read_strictly_and_come_back_from_both_linearisations(splits: Splits) -> None:
    labels: Counter[str] = Counter()
    tags: set[str] = set()
    for bracketed in splits["valid"]:
        (tree,) = read_trees([f"( {bracketed} )"], "sample")
        removed: Counter[str] = Counter()
        assert normalise(tree, removed) == tree
        assert not +removed
        tags.update(leaf.label for leaf in tree.leaves())
        for name in LINEARISATIONS:
            symbols = linearise(tree, name)
            back, repairs = delinearise(symbols, tree.words(), name)
            assert not repairs
            assert retagged(back, (leaf.label for leaf in tree.leaves())) == tree
            labels.update(symbol[1:] for symbol in symbols if symbol.startswith("("))
    assert set(labels) == {
        *("S", "NP", "VP", "PP", "SBAR", "SQ", "SBARQ", "SINV", "ADVP", "ADJP", "PRT", "WHNP", "WHADVP", "WHADJP")
    }
    assert not tags & set(labels)


def test_no_sentence_stands_twice(splits: Splits) -> None:
    sentences = [tuple(make_trees.words(tree)) for tree in itertools.chain(*splits.values())]
    assert len(set(sentences)) == len(sentences)


def test_training_never_combines_what_a_third_of_the_test_does(splits: Splits) -> None:
    for pair in make_trees.HELD_OUT:
        assert not [tree for tree in splits["train"] if make_trees.combines(tree, pair)]
        for name in pair:
            assert sum(make_trees.combines(tree, (name, name)) for tree in splits["train"]) >= 200, name
        assert sum(make_trees.combines(tree, pair) for tree in splits["test"]) >= 20, pair
    novel = [any(make_trees.combines(tree, pair) for pair in make_trees.HELD_OUT) for tree in splits["test"]]
    assert sum(novel) >= 0.3 * len(novel)


def test_every_word_of_the_held_back_sentences_is_known_from_training(splits: Splits) -> None:
    known = Counter(itertools.chain(*(set(make_trees.words(tree)) for tree in splits["train"])))
    for tree in [*splits["valid"], *splits["test"]]:
        assert all(known[form] >= 4 for form in make_trees.words(tree)), tree


def _noun(text: str) -> Noun:
    return next(noun for nouns in LEXICON.nouns.values() for noun in nouns if noun.text == text)


def _verb(text: str) -> Verb:
    return next(verb for verbs in LEXICON.verbs.values() for verb in verbs if verb.text == text)


ANNA = NounPhrase("Anna")
APPLE, BUS, MAN = NounPhrase(_noun("apple"), "a"), NounPhrase(_noun("bus"), owner=ANNA), _noun("man")

TREES = {
    "object, and what follows": (
        clause(Clause(ANNA, _verb("offer"), "past", object=APPLE, after=("(PP (TO to) (NP (PRP me)))",))),
        "(NP (NNP Anna)) (VP (VBD offered) (NP (DT an) (NN apple)) (PP (TO to) (NP (PRP me))))",
    ),
    "question": (
        [question(Clause(ANNA, _verb("read"), "past"), "(WHNP (WDT which) (NNS letters))")],
        "(SBARQ (WHNP (WDT which) (NNS letters)) (SQ (VBD did) (NP (NNP Anna)) (VP (VB read))) (. ?))",
    ),
    "relative clause": (
        clause(Clause(NounPhrase(MAN, "the", relative=Clause(None, _verb("come"))), _verb("sing"))),
        "(NP (NP (DT the) (NN man)) (SBAR (WHNP (WP who)) (S (VP (VBZ comes) (PRT (RP back)))))) (VP (VBZ sings))",
    ),
    "genitive after a preposition": (
        clause(Clause(NounPhrase("I"), _verb("wait"), "must", object=BUS)),
        "(NP (PRP I)) (VP (MD must) (VP (VB wait) (PP (IN for) (NP (NP (NNP Anna) (POS 's)) (NN bus)))))",
    ),
    "want, negated": (
        clause(Clause(NounPhrase(MAN, "this", plural=True), _verb("sing"), "want", negated=True)),
        "(NP (DT these) (NNS men)) (VP (VBP do) (RB not) (VP (VB want) (S (VP (TO to) (VP (VB sing))))))",
    ),
}


@pytest.mark.parametrize("construction", TREES)
def test_trees_worked_by_hand(construction: str) -> None:
    made, expected = TREES[construction]
    assert " ".join(part for part in made if part) == expected
