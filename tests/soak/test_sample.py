"""The embedded sample, made anew: a translator is needed for it, and its trees come back from both linearisations."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import pytest
import sacrebleu

from nmt.parsing.delinearisation import delinearise
from nmt.parsing.trees import LINEARISATIONS, linearise, normalise, read_trees
from tests.soak.treebank import retagged

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "data/sample"))

import make_sample

Splits = dict[str, list[make_sample.Example]]


@pytest.fixture(scope="module")
def splits() -> Splits:
    return make_sample.splits()


def test_trees_are_read_strictly_and_come_back_from_both_linearisations(splits: Splits) -> None:
    labels: Counter[str] = Counter()
    tags: set[str] = set()
    for example in splits["valid"]:
        (tree,) = read_trees([f"( {example.tree} )"], "sample")
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


def _tokens(text: str) -> list[str]:
    return re.findall(r"[\w-]+|[^\w\s]", text)


def _dictionary(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """For each source word, the target word with the highest Dice coefficient over the training sentences."""
    sources: Counter[str] = Counter()
    targets: Counter[str] = Counter()
    both: dict[str, Counter[str]] = {}
    for source, target in pairs:
        words, others = set(_tokens(source)), set(_tokens(target))
        sources.update(words)
        targets.update(others)
        for word in words:
            both.setdefault(word, Counter()).update(others)
    return {
        word: max(counts, key=lambda other: (2 * counts[other] / (sources[word] + targets[other]), other))
        for word, counts in both.items()
    }


@pytest.mark.parametrize("language", ["de", "fr"])
def test_neither_a_dictionary_nor_a_copy_translates_it(splits: Splits, language: str) -> None:
    words = _dictionary([(each.en, getattr(each, language)) for each in splits["train"]])
    references = [[getattr(each, language) for each in splits["test"]]]
    by_word = [" ".join(words[token] for token in _tokens(each.en)) for each in splits["test"]]
    dictionary = sacrebleu.corpus_bleu(by_word, references).score
    copy = sacrebleu.corpus_bleu([each.en for each in splits["test"]], references).score
    print(f"en-{language}: dictionary {dictionary:.1f}, copy {copy:.1f}")
    assert 5 < dictionary < 40  # below 5, it would be no fair dictionary
    assert copy < 10
