"""The embedded sample: what its archives hold, what its grammar says, and that a translator is needed for it."""

from __future__ import annotations

import hashlib
import itertools
import random
import re
import sys
import tarfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import sacrebleu
import yaml

from nmt.text.delinearisation import delinearise
from nmt.text.trees import LINEARISATIONS, linearise, normalise, read_trees

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "data/sample"
sys.path.insert(0, str(SAMPLE))

import make_sample  # noqa: E402 - from the path above
from grammar import clauses, english, english_trees, french, german, sampling  # noqa: E402 - from the path above
from grammar.numbers import amount, in_words, storeyed, years_old  # noqa: E402 - from the path above
from grammar.syntax import (  # noqa: E402 - from the path above
    Birth,
    Clause,
    Comparison,
    Existence,
    NounPhrase,
    Place,
    Pronoun,
    Question,
    Quotation,
    Sentence,
    Statement,
    Subordination,
    constructions,
)
from grammar.words import Adjective, Name, Noun, Phrase, Verb, load  # noqa: E402 - from the path above

LEXICON = load()
Splits = dict[str, list[make_sample.Example]]


@pytest.fixture(scope="module")
def splits() -> Splits:
    return make_sample.splits()


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


def test_catalog_names_the_archives_on_disk() -> None:
    catalog = yaml.safe_load((ROOT / "data/catalog/sample.yaml").read_text(encoding="utf-8"))
    total = 0
    for name, facts in catalog["archives"].items():
        data = (ROOT / facts["url"].removeprefix("file:")).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (facts["bytes"], facts["sha256"]), name
        total += len(data)
    assert total < 3_000_000
    for sets in catalog["pairs"].values():
        for parallel in [*sets["train"], sets["valid"], sets["test"]]:
            for side in ("source", "target"):
                assert parallel[side]["member"] in _read(parallel[side]["archive"])


def test_test_set_is_sgm_with_numbered_segments(splits: Splits) -> None:
    files = _read("test-full.tgz")
    for name, side, language in (("deen-src.en", "srcset", "en"), ("fren-ref.fr", "refset", "fr")):
        root = ET.fromstring(files[f"test-full/sampletest-{name}.sgm"])
        segments = list(root.iter("seg"))
        assert root.tag == side
        assert [segment.get("id") for segment in segments] == [str(row) for row in range(1, len(segments) + 1)]
        assert [segment.text for segment in segments] == [getattr(example, language) for example in splits["test"]]


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
        known = Counter(
            form for each in splits["train"] for form in set(make_sample.word_forms(getattr(each, language)))
        )
        for name in ("valid", "test"):
            for each in splits[name]:
                assert all(known[form] >= 4 for form in make_sample.word_forms(getattr(each, language))), each


def test_the_seed_decides_the_sentences() -> None:
    def first(seed: int) -> list[str]:
        sampler = sampling.Sampler(LEXICON, random.Random(seed))
        return [english.spell(sampler.sentence()) for _ in range(20)]

    assert first(1) == first(1) != first(2)


# The trees of the English sentences


def test_a_tree_holds_the_words_of_its_sentence(splits: Splits) -> None:
    for example in itertools.chain(*splits.values()):
        assert english_trees.text(example.tree) == example.en


BRACKETED = {
    "a question in quotes": (
        "(S (NP (PRP He)) (VP (VBZ asks) (: :) (`` ``) (SQ (VBZ Does) (NP (NNP Anna)) (VP (VB sing)) (. ?)) ('' '')))"
    ),
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
    "negation with a definite object, time in front": (
        "(S (NP (NN Yesterday)) (NP (DT the) (NN girl)) (VP (VBD did) (RB not) (VP (VB open) "
        "(NP (DT the) (NN window)))) (. .))"
    ),
    "genitive": "(S (NP (NP (DT The) (NN child) (POS 's)) (JJ old) (NN cat)) (VP (VBZ sleeps)) (. .))",
}


@pytest.mark.parametrize("phenomenon", BRACKETED)
def test_trees_worked_by_hand(phenomenon: str) -> None:
    assert english_trees.tree(GOLDEN[phenomenon][0]) == BRACKETED[phenomenon]


def test_trees_are_read_strictly_and_come_back_from_both_linearisations(splits: Splits) -> None:
    labels: Counter[str] = Counter()
    tags: set[str] = set()
    for example in splits["valid"] + splits["test"]:
        (tree,) = read_trees([f"( {example.tree} )"], "sample")
        removed: Counter[str] = Counter()
        assert normalise(tree, removed) == tree
        assert not +removed
        tags.update(leaf.label for leaf in tree.leaves())
        for name in LINEARISATIONS:
            symbols = linearise(tree, name)
            back, repairs = delinearise(symbols, tree.words(), name)
            assert not repairs
            assert back.retagged(leaf.label for leaf in tree.leaves()) == tree
            labels.update(symbol[1:] for symbol in symbols if symbol.startswith("("))
    assert set(labels) == {
        *("S", "NP", "VP", "PP", "SBAR", "SQ", "SBARQ", "SINV", "ADVP", "ADJP", "PRT", "WHNP", "WHADVP", "WHADJP")
    }
    assert not tags & set(labels)


# A translator is needed


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


# The grammar, worked by hand


def _noun(english_word: str) -> Noun:
    return LEXICON.by_english[english_word]


def _verb(frame: str, base: str, particle: str = "", preposition: str = "") -> Verb:
    fits = [
        verb
        for verb in LEXICON.verbs[frame]
        if (verb.en, verb.en_particle, verb.en_preposition) == (base, particle, preposition)
    ]
    assert len(fits) == 1
    return fits[0]


def _adjective(english_word: str) -> Adjective:
    return next(word for word in LEXICON.adjectives if word.en == english_word)


def _adverb(english_phrase: str) -> Phrase:
    return next(word for words in LEXICON.adverbs.values() for word in words if word.en == english_phrase)


def _the(noun: str, adjective: str = "", plural: bool = False) -> NounPhrase:
    return NounPhrase(_noun(noun), "the", plural, adjective=_adjective(adjective) if adjective else None)


ANNA = NounPhrase(Name("Anna", female=True))
PAUL = NounPhrase(Name("Paul", female=False))
HE = NounPhrase(Pronoun("he"))
BERLIN = Place(Phrase("Berlin", "Berlin", "Berlin"))

GOLDEN: dict[str, tuple[Sentence, str, str, str]] = {
    "case and adjectives": (
        Statement(Clause(_the("teacher", "old"), _verb("t", "buy"), object=NounPhrase(
            _noun("lamp"), "a", adjective=_adjective("red")))),
        "The old teacher buys a red lamp.",
        "Der alte Lehrer kauft eine rote Lampe.",
        "Le vieil enseignant achète une lampe rouge.",
    ),
    "dative plural, and French contraction": (
        Statement(Clause(ANNA, _verb("d", "give"), "past", object=NounPhrase(
            _noun("hat"), "a", adjective=_adjective("black")), recipient=_the("child", "small", plural=True))),
        "Anna gave a black hat to the small children.",
        "Anna hat den kleinen Kindern einen schwarzen Hut gegeben.",
        "Anna a donné un chapeau noir aux petits enfants.",
    ),
    "weak nouns": (
        Statement(Clause(HE, _verb("t", "see"), object=_the("neighbour"))),
        "He sees the neighbour.",
        "Er sieht den Nachbarn.",
        "Il voit le voisin.",
    ),
    "separable verb": (
        Statement(Clause(_the("man"), _verb("t", "turn", "on"), object=_the("lamp"))),
        "The man turns on the lamp.",
        "Der Mann schaltet die Lampe ein.",
        "L'homme allume la lampe.",
    ),
    "separable verb at the end of a subordinate clause": (
        Subordination(Clause(ANNA, _verb("c", "say")), sampling.THAT, Clause(
            HE, _verb("t", "invite"), object=_the("aunt"))),
        "Anna says that he invites the aunt.",
        "Anna sagt, dass er die Tante einlädt.",
        "Anna dit qu'il invite la tante.",
    ),
    "fronted clause, perfect with sein and être": (
        Subordination(Clause(PAUL, _verb("i", "sleep")), sampling.ADVERBIAL[0], Clause(
            _the("queen", plural=True), _verb("i", "arrive"), "past"), fronted=True),
        "Because the queens arrived, Paul sleeps.",
        "Weil die Königinnen angekommen sind, schläft Paul.",
        "Parce que les reines sont arrivées, Paul dort.",
    ),
    "negation with an indefinite object": (
        Statement(Clause(_the("girl"), _verb("t", "buy"), negated=True, object=NounPhrase(
            _noun("apple"), "no", plural=True))),
        "The girl does not buy any apples.",
        "Das Mädchen kauft keine Äpfel.",
        "La fille n'achète pas de pommes.",
    ),
    "negation with a definite object, time in front": (
        Statement(Clause(_the("girl"), _verb("t", "open"), "past", True, _the("window"),
                         time=_adverb("yesterday")), fronted=True),
        "Yesterday the girl did not open the window.",
        "Gestern hat das Mädchen das Fenster nicht aufgemacht.",
        "Hier, la fille n'a pas ouvert la fenêtre.",
    ),
    "modal": (
        Statement(Clause(NounPhrase(Pronoun("we")), _verb("t", "help"), "must", object=NounPhrase(Pronoun("she")))),
        "We must help her.",
        "Wir müssen ihr helfen.",
        "Nous devons l'aider.",
    ),
    "yes-no question": (
        Question(Clause(_the("woman"), _verb("t", "love"), object=_the("horse", plural=True))),
        "Does the woman love the horses?",
        "Liebt die Frau die Pferde?",
        "Est-ce que la femme aime les chevaux ?",
    ),
    "which, with agreement of the participle": (
        Question(Clause(ANNA, _verb("t", "read"), "past"), which=NounPhrase(_noun("letter"), plural=True)),
        "Which letters did Anna read?",
        "Welche Briefe hat Anna gelesen?",
        "Quelles lettres est-ce qu'Anna a lues ?",
    ),
    "relative clauses": (
        Statement(Clause(_the("man"), _verb("t", "read"), "past", object=NounPhrase(
            _noun("story"), "the", relative=Clause(_the("aunt"), _verb("t", "write"), "past")))),
        "The man read the story that the aunt wrote.",
        "Der Mann hat die Geschichte gelesen, die die Tante geschrieben hat.",
        "L'homme a lu l'histoire que la tante a écrite.",
    ),
    "relative clause at the subject": (
        Statement(Clause(NounPhrase(_noun("man"), "the", relative=Clause(
            None, _verb("t", "wait", preposition="for"), object=_the("bus"))), _verb("i", "sing"))),
        "The man who waits for the bus sings.",
        "Der Mann, der auf den Bus wartet, singt.",
        "L'homme qui attend le bus chante.",
    ),
    "numbers and a place": (
        Existence(NounPhrase(_noun("bird"), "", True, in_words(81), _adjective("white")), Place(_the("garden"))),
        "There are eighty-one white birds in the garden.",
        "Im Garten sind einundachtzig weiße Vögel.",
        "Il y a quatre-vingt-un oiseaux blancs dans le jardin.",
    ),
    "a feminine number": (
        Statement(Clause(_the("king"), _verb("t", "see"), object=NounPhrase(_noun("cow"), "", True, in_words(21)))),
        "The king sees twenty-one cows.",
        "Der König sieht einundzwanzig Kühe.",
        "Le roi voit vingt et une vaches.",
    ),
    "decimal comma": (
        Statement(Clause(_the("cat"), clauses.WEIGH, measure=amount(45, clauses.KILOGRAMS))),
        "The cat weighs 4.5 kilograms.",
        "Die Katze wiegt 4,5 Kilogramm.",
        "Le chat pèse 4,5 kilogrammes.",
    ),
    "genitive": (
        Statement(Clause(NounPhrase(
            _noun("cat"), owner=_the("child"), adjective=_adjective("old")), _verb("i", "sleep"))),
        "The child's old cat sleeps.",
        "Die alte Katze des Kindes schläft.",
        "Le vieux chat de l'enfant dort.",
    ),
    "genitive of a name, strong adjective": (
        Statement(Clause(NounPhrase(_noun("dog"), owner=ANNA, adjective=_adjective("big")), _verb("i", "sleep"))),
        "Anna's big dog sleeps.",
        "Annas großer Hund schläft.",
        "Le grand chien d'Anna dort.",
    ),
    "hyphenated words": (
        Statement(Clause(NounPhrase(_noun("girl"), "a", adjective=years_old(11)), _verb("t", "draw"), object=NounPhrase(
            _noun("house"), "a", adjective=storeyed(8)))),
        "An eleven-year-old girl draws an eight-storey house.",
        "Ein elfjähriges Mädchen zeichnet ein achtstöckiges Haus.",
        "Une fille de onze ans dessine une maison de huit étages.",
    ),
    "quotes": (
        Quotation(Clause(ANNA, _verb("c", "whisper")), Statement(Clause(
            _the("hero"), clauses.BE, predicate=_adjective("tired"))), last=True),
        '"The hero is tired," whispers Anna.',
        '"Der Held ist müde", flüstert Anna.',
        '"Le héros est fatigué", chuchote Anna.',
    ),
    "a question in quotes": (
        Quotation(Clause(HE, _verb("c", "ask")), Question(Clause(ANNA, _verb("i", "sing")))),
        'He asks: "Does Anna sing?"',
        'Er fragt: "Singt Anna?"',
        'Il demande : "Est-ce qu\'Anna chante ?"',
    ),
    "comparison": (
        Statement(Clause(
            _the("cow"), clauses.BE, predicate=_adjective("old"), comparison=Comparison(True, _the("goat")))),
        "The cow is older than the goat.",
        "Die Kuh ist älter als die Ziege.",
        "La vache est plus vieille que la chèvre.",
    ),
    "names": (
        Birth(ANNA, "1985", BERLIN),
        "Anna was born in 1985 in Berlin.",
        "Anna wurde 1985 in Berlin geboren.",
        "Anna est née en 1985 à Berlin.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("phenomenon", GOLDEN)
def test_sentences_worked_by_hand(phenomenon: str) -> None:
    sentence, *expected = GOLDEN[phenomenon]
    assert [english.spell(sentence), german.spell(sentence), french.spell(sentence)] == expected


def test_constructions_of_a_sentence() -> None:
    sentence = GOLDEN["negation with a definite object, time in front"][0]
    assert constructions(sentence) == {"past", "separable", "negation", "fronted"}
    assert {"dative", "plural", "adjective", "name"} <= constructions(
        GOLDEN["dative plural, and French contraction"][0]
    )
    assert "hyphen" in constructions(GOLDEN["hyphenated words"][0])


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (11, ("eleven", "elf", "*onze")),
        (17, ("seventeen", "siebzehn", "dix-sept")),
        (21, ("twenty-one", "einundzwanzig", "vingt et un")),
        (71, ("seventy-one", "einundsiebzig", "soixante et onze")),
        (80, ("eighty", "achtzig", "quatre-vingts")),
        (91, ("ninety-one", "einundneunzig", "quatre-vingt-onze")),
        (99, ("ninety-nine", "neunundneunzig", "quatre-vingt-dix-neuf")),
    ],
)
def test_numbers(number: int, expected: tuple[str, str, str]) -> None:
    words = in_words(number)
    assert (words.en, words.de, words.fr) == expected
