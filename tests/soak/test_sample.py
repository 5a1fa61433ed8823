"""The embedded sample, made anew: its archives, corpus, trees and grammar, and that a translator is needed for it."""

from __future__ import annotations

import itertools
import re
import sys
import tarfile
from collections import Counter
from pathlib import Path

import pytest
import sacrebleu

from nmt.parsing.delinearisation import delinearise
from nmt.parsing.trees import LINEARISATIONS, linearise, normalise, read_trees
from tests.soak.treebank import retagged

SAMPLE = Path(__file__).resolve().parents[2] / "data/sample"
sys.path.insert(0, str(SAMPLE))

import make_sample  # noqa: E402 - from the path above
from grammar import clauses, english, english_trees, french, german, sampling  # noqa: E402 - from the path above
from grammar.syntax import Clause, NounPhrase, Question, Quotation, Sentence, Statement, Subordination  # noqa: E402 - from the path above
from grammar.words import Adjective, Name, Noun, Verb, load  # noqa: E402 - from the path above

LEXICON = load()
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


def _read(archive: str) -> dict[str, bytes]:
    with tarfile.open(SAMPLE / archive) as tar:
        files = {entry.name: tar.extractfile(entry) for entry in tar}
        return {name: file.read() for name, file in files.items() if file is not None}


# The archives


def test_archives_hold_what_the_generator_makes(splits: Splits) -> None:
    for archive, made in make_sample.members(splits).items():
        assert _read(archive) == made


def test_archive_bytes_do_not_depend_on_when_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    content = {"dev/a.en": b"a\n" * 100}
    first = make_sample.archive(content)
    monkeypatch.setattr("time.time", lambda: 1.0e9)
    assert make_sample.archive(content) == first


# The corpus


def test_counts(splits: Splits) -> None:
    assert len(splits["train"]) >= 20_000
    assert len(splits["valid"]) == len(splits["test"]) == 500
    for language in make_sample.LANGUAGES:
        words = [form for each in splits["train"] for form in make_sample.word_forms(getattr(each, language))]
        assert len({word.lower() for word in words if not word[0].isdigit()}) >= 2_000, language
    lengths = [len(each.en.split()) for each in splits["train"]]
    assert 8 <= sum(lengths) / len(lengths) <= 12
    assert sum(length >= 20 for length in lengths) >= 50


def test_no_held_back_sentence_stands_in_training(splits: Splits) -> None:
    for language in make_sample.LANGUAGES:
        seen = {getattr(example, language) for example in splits["train"]}
        for name in ("valid", "test"):
            assert seen.isdisjoint(getattr(example, language) for example in splits[name])
    assert not {each.en for each in splits["valid"]} & {each.en for each in splits["test"]}


def test_an_english_sentence_has_one_translation(splits: Splits) -> None:
    texts = [each.en for part in splits.values() for each in part]
    assert len(set(texts)) == len(texts)


def test_training_never_combines_what_a_third_of_the_test_does(splits: Splits) -> None:
    for pair in make_sample.HELD_OUT:
        assert not [each.en for each in splits["train"] if pair <= each.constructions]
        for construction in pair:
            assert sum(construction in each.constructions for each in splits["train"]) >= 300, construction
        assert sum(pair <= each.constructions for each in splits["test"]) >= 20, pair
    novel = [any(pair <= each.constructions for pair in make_sample.HELD_OUT) for each in splits["test"]]
    assert sum(novel) >= 0.3 * len(novel)


def test_every_word_of_the_held_back_sentences_is_known_from_training(splits: Splits) -> None:
    for language in make_sample.LANGUAGES:
        forms = (set(make_sample.word_forms(getattr(each, language))) for each in splits["train"])
        known = Counter(itertools.chain(*forms))
        for name in ("valid", "test"):
            for each in splits[name]:
                assert all(known[form] >= 4 for form in make_sample.word_forms(getattr(each, language))), each


# The trees of the English sentences


def test_a_tree_holds_the_words_of_its_sentence(splits: Splits) -> None:
    for example in itertools.chain(*splits.values()):
        assert english_trees.text(example.tree) == example.en


BRACKETED = {
    "quotes": (
        "(SINV (`` ``) (S (NP (DT The) (NN hero)) (VP (VBZ is) (ADJP (JJ tired)))) (, ,) ('' '') (VP (VBZ whispers)) "
        "(NP (NNP Anna)) (. .))"
    ),
    "which, with agreement of the participle": (
        "(SBARQ (WHNP (WDT Which) (NNS letters)) (SQ (VBD did) (NP (NNP Anna)) (VP (VB read))) (. ?))"
    ),
    "relative clause at the subject": (
        "(S (NP (NP (DT The) (NN man)) (SBAR (WHNP (WP who)) (S (VP (VBZ waits) "
        "(PP (IN for) (NP (DT the) (NN bus))))))) (VP (VBZ sings)) (. .))"
    ),
}


# The grammar, worked by hand


def _noun(english_word: str) -> Noun:
    return LEXICON.by_english[english_word]


def _verb(frame: str, base: str, particle: str = "", preposition: str = "") -> Verb:
    asked = (base, particle, preposition)
    (found,) = (verb for verb in LEXICON.verbs[frame] if (verb.en, verb.en_particle, verb.en_preposition) == asked)
    return found


def _adjective(english_word: str) -> Adjective:
    return next(word for word in LEXICON.adjectives if word.en == english_word)


def _the(noun: str, adjective: str = "", plural: bool = False) -> NounPhrase:
    return NounPhrase(_noun(noun), "the", plural, adjective=_adjective(adjective) if adjective else None)


ANNA = NounPhrase(Name("Anna", female=True))
PAUL = NounPhrase(Name("Paul", female=False))

GOLDEN: dict[str, tuple[Sentence, str, str, str]] = {
    "dative plural, and French contraction": (
        Statement(Clause(ANNA, _verb("d", "give"), "past", object=NounPhrase(
            _noun("hat"), "a", adjective=_adjective("black")), recipient=_the("child", "small", plural=True))),
        "Anna gave a black hat to the small children.",
        "Anna hat den kleinen Kindern einen schwarzen Hut gegeben.",
        "Anna a donné un chapeau noir aux petits enfants.",
    ),
    "fronted clause, perfect with sein and être": (
        Subordination(Clause(PAUL, _verb("i", "sleep")), sampling.ADVERBIAL[0], Clause(
            _the("queen", plural=True), _verb("i", "arrive"), "past"), fronted=True),
        "Because the queens arrived, Paul sleeps.",
        "Weil die Königinnen angekommen sind, schläft Paul.",
        "Parce que les reines sont arrivées, Paul dort.",
    ),
    "which, with agreement of the participle": (
        Question(Clause(ANNA, _verb("t", "read"), "past"), which=NounPhrase(_noun("letter"), plural=True)),
        "Which letters did Anna read?",
        "Welche Briefe hat Anna gelesen?",
        "Quelles lettres est-ce qu'Anna a lues ?",
    ),
    "relative clause at the subject": (
        Statement(Clause(NounPhrase(_noun("man"), "the", relative=Clause(
            None, _verb("t", "wait", preposition="for"), object=_the("bus"))), _verb("i", "sing"))),
        "The man who waits for the bus sings.",
        "Der Mann, der auf den Bus wartet, singt.",
        "L'homme qui attend le bus chante.",
    ),
    "quotes": (
        Quotation(Clause(ANNA, _verb("c", "whisper")), Statement(Clause(
            _the("hero"), clauses.BE, predicate=_adjective("tired"))), last=True),
        '"The hero is tired," whispers Anna.',
        '"Der Held ist müde", flüstert Anna.',
        '"Le héros est fatigué", chuchote Anna.',
    ),
}  # fmt: skip


@pytest.mark.parametrize("phenomenon", GOLDEN)
def test_sentences_worked_by_hand(phenomenon: str) -> None:
    sentence, *expected = GOLDEN[phenomenon]
    assert [english.spell(sentence), german.spell(sentence), french.spell(sentence)] == expected
    if phenomenon in BRACKETED:
        assert english_trees.tree(sentence) == BRACKETED[phenomenon]
