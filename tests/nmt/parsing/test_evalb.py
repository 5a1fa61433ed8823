"""EVALB: its own sample's known numbers, and cases worked by hand."""

import dataclasses
import json
from pathlib import Path

import pytest
from command_line import printed
from refusals import check_refusal
from text_lines import write_lines

from nmt.parsing import evalb
from nmt.parsing.delinearisation import delinearise
from nmt.parsing.evalb import Sentence, compare
from nmt.parsing.trees import Tree, read_trees

THIS = "(S (A (P this)) (B (Q is) (A (R a) (T test))))"
ELEVEN = "(S" + " (A (P this)) (B (Q is) (A (R a) (T test)))" * 11 + ")"
# sample/sample.gld and sample/sample.tst of EVALB, whose authors abandoned its copyright (Unlicense).
GOLD = [
    *[THIS] * 20,
    "(S (A-SBJ-1 (P this)) (B-WHATEVER (Q is) (A (R a) (T test))))",
    ELEVEN,
    "(S (A (P this)) (B (Q is) (A (R a) (T test))) (-NONE- *))",
    "(S (A (P this)) (B (Q is) (A (R a) (T test))) (: *))",
]
PARSED = [
    THIS,
    "(S (A (P this)) (B (Q is) (C (R a) (T test))))",
    "(S (A (P this)) (B (Q is) (A (R a) (U test))))",
    "(S (C (P this)) (B (Q is) (A (R a) (U test))))",
    "(S (A (P this)) (B (Q is) (R a) (A (T test))))",
    "(S (A (P this) (Q is)) (A (R a) (T test)))",
    "(S (P this) (Q is) (R a) (T test))",
    "(P this) (Q is) (R a) (T test)",
    "(S (A (P this)) (B (Q is) (A (A (R a) (T test)))))",
    "(S (A (P this)) (B (Q is) (A (A (A (A (A (R a) (T test))))))))",
    "",
    "(S (A (P this)) (B (Q was) (A (A (R a) (T test)))))",
    "(S (A (P this)) (B (Q is) (U not) (A (A (R a) (T test)))))",
    "",
    f"(TOP {THIS})",
    "(S (A (P this)) (NONE *) (B (Q is) (A (R a) (T test))))",
    "(S (A (P this)) (S (NONE abc) (A (NONE *))) (B (Q is) (A (R a) (T test))))",
    "(S (A (P this)) (B (Q is) (A (R a) (TT test))))",
    "(S (A (P this)) (B (Q is) (A (R a) (T test))))",  # `This` there, which its rules make equal to `this`.
    "(S (A (P That)) (B (Q is) (A (R a) (T test))))",
    THIS,
    *GOLD[-3:],
]
SKIPPED, ERRORS = {11, 14}, {12, 13, 16, 17, 20}
HE = "(S (NP (PRP He)) (VP (VBD ran) (ADVP (RB away))) (. .))"


def tree(text: str) -> Tree:
    (parsed,) = read_trees([text], "test")
    return parsed


def counts(gold: str, parsed: str) -> Sentence:
    return compare([tree(gold)], [tree(parsed)])


def write(folder: Path, gold: list[str], parsed: list[str]) -> tuple[Path, Path]:
    return write_lines(folder / "gold", gold), write_lines(folder / "parsed", parsed)


def test_its_own_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As sample/sample.prm says.
    monkeypatch.setattr(evalb, "DELETED", evalb.DELETED - {"."})
    monkeypatch.setattr(evalb, "SAME_LABEL", {"TT": "T"})
    scores = evalb.read(*write(tmp_path, GOLD, PARSED))
    rows = dict(enumerate(scores.sentences, start=1))
    assert {row for row, sentence in rows.items() if sentence.skipped} == SKIPPED
    assert {row for row, sentence in rows.items() if sentence.error} == ERRORS
    assert [sentence.length for sentence in scores.sentences[-4:]] == [4, 44, 4, 5], "without traces"
    # The last lines of sample/sample.rsl: every count of every sentence is in these sums.
    for total, numbers in (
        (scores.total, (24, 5, 2, 87.76, 90.53, 89.12, 52.94, 0.06, 94.12, 100.00, 98.15)),
        (scores.short, (23, 5, 2, 81.25, 85.25, 83.20, 50.00, 0.06, 93.75, 100.00, 96.88)),
    ):
        assert [round(number, 2) for number in dataclasses.astuple(total)] == list(numbers)
    assert scores.total.average_crossing == pytest.approx(1 / 17)
    assert scores.low < scores.total.f1 < scores.high
    assert scores.signature == "evalb|rules:COLLINS|tags:own|unscored:excluded|cutoff:40|version:1"


@pytest.mark.parametrize(
    ("gold", "parsed", "matched"),
    [
        ("(NP (NP (NN dog)))", "(NP (NN dog))", (1, 2, 1)),
        ("(NP (NP (NN dog)))", "(NP (NP (NN dog)))", (2, 2, 2)),
        ("(NP (NP (NP (NN dog))))", "(VP (NP (NP (NN dog))))", (2, 3, 3)),
        ("(S (ADVP (RB up)) (VP (VB go)))", "(S (PRT (RB up)) (VP (VB go)))", (3, 3, 3)),
        ("(S (NP-SBJ=1 (NN dog)) (. .))", "(TOP (S (NP (NN dog))) (. !))", (2, 2, 2)),
        ("(S (NP (NN dog)) (X (, ,)))", "(S (NP (NN dog)) (, ,))", (2, 2, 2)),
        ("(S (NP (NN dog)) (NP (-NONE- *)))", "(S (NP (NN dog)))", (2, 2, 2)),
    ],
)
def test_brackets_counted_by_hand(gold: str, parsed: str, matched: tuple[int, int, int]) -> None:
    sentence = counts(gold, parsed)
    assert (sentence.matched, sentence.gold, sentence.parsed) == matched


def test_sentences_with_other_words_cannot_be_scored() -> None:
    sentence = counts("(S (. .))", "(S (NN dog))")
    assert sentence.error == "0 words in GOLD and 1 in PARSED, without punctuation by its tags"
    assert counts("(S (NN dog))", "(S (NN cat))").error == "the word `dog` in GOLD is `cat` in PARSED"


def test_a_parsed_bracket_that_crosses_is_counted_once() -> None:
    gold = "(S (A (X a) (X b)) (B (X c) (X d)) (X e))"
    assert counts(gold, "(S (X a) (C (X b) (X c)) (X d) (X e))").crossing == 1
    assert counts(gold, "(S (X a) (C (X b) (X c) (X d)) (D (X e)))").crossing == 1
    assert counts(gold, gold).crossing == 0


def test_gold_tags_replace_xx_so_that_punctuation_is_found() -> None:
    gold = tree("(S (NP (PRP He)) (NP (-NONE- *)) (, ,) (VP (VBD ran)) (. .))")
    symbols = "(S (NP XX )NP XX (VP XX )VP XX )S"
    parsed, _ = delinearise(symbols.split(), ["He", ",", "ran", "."], "vinyals")
    scores = evalb.score_lines([str(gold)], [str(parsed)])
    assert (scores.total.f1, scores.total.tagging) == (100.0, None)
    assert "tags:gold" in scores.signature


def test_sentences_by_length() -> None:
    groups = evalb.by_length([Sentence(10, 1, 2, 2), Sentence(11, 2, 2, 2), Sentence(41, 0, 1, 1)])
    assert {name: total.f1 for name, total in groups.items()} == {"1 to 10": 50.0, "11 to 20": 100.0, "over 40": 0.0}


def test_the_command_names_sentences_that_cannot_be_scored_and_takes_the_gold_tags(tmp_path: Path) -> None:
    gold, parsed = write(tmp_path, [HE, HE, HE], [HE, "(S (NN dog)", "(S (NN dog))"])
    text = printed("evalb", gold, parsed)
    for said in (
        "F1 100.00",
        "  all: 3 sentences, recall 100.00, precision 100.00, F1 100.00, complete match 100.00, average cr",
        "not scored: 2 with an error, 0 without a parse",
        "parsed, line 2: the tree that begins on line 2 lacks 1 of its closing brackets",
        "line 3: 3 words in GOLD and 1 in PARSED, without punctuation by its tags",
    ):
        assert said in text
    comma = "(S (NP (NN a)) (, ,) (VP (VB b)))"
    gold, parsed = write(tmp_path, [comma] * 2, ["(S (NP (NN a)) (NN ,) (VP (VB b)))", comma])
    for options, errors in (((), [1]), (("--gold-tags",), [])):
        report = json.loads(printed("evalb", gold, parsed, "--json", *options))
        assert (report["all"]["f1"], [error["line"] for error in report["errors"]]) == (100.0, errors)


@pytest.mark.parametrize(
    ("gold", "parsed", "message"),
    [
        ([HE], [HE, HE], "GOLD has 1 sentences and PARSED has 2: give a line for each line"),
        (["(S (XX He))"], ["(S (PRP He))"], "every tag in GOLD is XX, .*give the treebank first, then the parses"),
        ([HE], ["(S (PRP She))"], "no sentence can be scored.*line 1: 3 words in GOLD and 1 in PARSED"),
        ([HE], [""], "no sentence can be scored"),
        ([], [], "is empty: there is no tree to score against"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, gold: list[str], parsed: list[str], message: str) -> None:
    check_refusal(message, evalb.read, *write(tmp_path, gold, parsed))
