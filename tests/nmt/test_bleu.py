"""Scores against hand-worked cases and against system outputs whose scores are known."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path

import pytest

from nmt import bleu, testsets
from nmt.config import InputError

REAL = Path(__file__).resolve().parents[2].parent / "shared/real"
needs_real = pytest.mark.skipif(not REAL.exists(), reason="real text (../shared/real) is not here")

REFERENCES = ["Das ist ein gut-gemeinter Rat .", "Er kam nicht ."]
HYPOTHESES = ["Das ist ein gut-gemeinter Tipp .", "Er kam nicht ."]


def test_bleu_by_hand() -> None:
    # 13a leaves the hyphen alone: 6 + 4 tokens, of which 9 match; 6 of 8 bigrams, 4 of 6 trigrams, 2 of 4 4-grams.
    by_hand = 100 * math.exp(sum(math.log(p) for p in (9 / 10, 6 / 8, 4 / 6, 2 / 4)) / 4)
    score, signature = bleu.sacrebleu(HYPOTHESES, REFERENCES)
    assert score == pytest.approx(by_hand)
    assert signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


def test_paper_way_by_hand() -> None:
    # Split, `gut-gemeinter` is three tokens: 11 of 12 match; 8 of 10 bigrams, 6 of 8 trigrams, 4 of 6 4-grams.
    by_hand = 100 * math.exp(sum(math.log(p) for p in (11 / 12, 8 / 10, 6 / 8, 4 / 6)) / 4)
    steps = bleu.paper_way(HYPOTHESES, REFERENCES, "de")
    assert [step.name for step in steps] == [
        "sacreBLEU, 13a",
        "Moses tokens",
        "compounds split at hyphens",
        "unicode quotes made plain",
    ]
    assert steps[2].bleu == pytest.approx(by_hand)
    assert steps[3].bleu == pytest.approx(by_hand)


def test_quotes_count_only_before_the_last_step() -> None:
    steps = bleu.paper_way(['"Ja", sagte er dann .'], ["\u201eJa\u201c, sagte er dann ."], "de")
    assert steps[2].bleu < 80
    assert steps[3].bleu == pytest.approx(100)


def test_french_is_scored_on_moses_tokens_alone() -> None:
    steps = bleu.paper_way(["L'arc-en-ciel est là ."], ["L'arc-en-ciel est là ."], "fr")
    assert [step.name for step in steps] == ["sacreBLEU, 13a", "Moses tokens"]
    assert steps[-1].bleu == pytest.approx(100)


def test_compounds_are_split_as_by_perl() -> None:
    assert bleu.split_compounds("rich-text a - b xx-yy-zz") == (
        "rich ##AT##-##AT## text a - b xx ##AT##-##AT## yy ##AT##-##AT## zz"
    )
    # Like Perl's, the expression does not match twice over one letter.
    assert bleu.split_compounds("a-b-c") == "a ##AT##-##AT## b-c"


def test_confidence_holds_the_score_and_is_repeatable() -> None:
    references = [f"line {n} of the text says {n * n} ." for n in range(60)]
    hypotheses = [line if n % 3 else line.replace("says", "tells") for n, line in enumerate(references)]
    interval = bleu.confidence(hypotheses, references)
    assert interval == bleu.confidence(hypotheses, references)
    assert interval.low < bleu.sacrebleu(hypotheses, references)[0] < interval.high


def test_comparison_tells_a_better_system_from_an_equal_one() -> None:
    references = [f"line {n} of the text says {n * n} ." for n in range(60)]
    worse = [line.replace("says", "tells") for line in references]
    better = bleu.compare(worse, references, references)
    assert better.difference > 10
    assert better.p_value < 0.01
    equal = bleu.compare(worse, worse, references)
    assert equal.difference == 0
    assert equal.p_value == 1


def test_chrf_of_the_same_text_is_full() -> None:
    score, signature = bleu.chrf(REFERENCES, REFERENCES)
    assert score == pytest.approx(100)
    assert "nc:6" in signature


@pytest.mark.parametrize("function", [bleu.sacrebleu, bleu.chrf, bleu.confidence])
def test_different_line_counts_are_refused(function: object) -> None:
    assert callable(function)
    with pytest.raises(InputError, match="1 translations for 2 references"):
        function(["a"], ["a", "b"])


def test_lines_end_at_newline_alone(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("a\rb\u2028c\n\nd\n".encode())
    assert bleu.read_lines(path) == ["a\rb\u2028c", "", "d"]
    path.write_bytes(b"\n")
    assert bleu.read_lines(path) == [""]


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b"ok\nab\xff\n", "line 2, byte 3: not UTF-8"), (None, "cannot be read")],
)
def test_bad_files_are_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        bleu.read_lines(path)


def _write(folder: Path, **texts: list[str]) -> list[str]:
    for name, lines in texts.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return [str(folder / name) for name in texts]


def test_command_line_compares_two_systems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = _write(tmp_path, one=HYPOTHESES, two=REFERENCES, reference=REFERENCES)
    assert bleu.main([*paths, "--lang", "de", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert second["bleu"] == pytest.approx(100)
    assert second["difference"] == pytest.approx(100 - first["bleu"])
    assert 0 < second["p_value"] <= 1
    assert first["paper_way_steps"][0]["step"] == "sacreBLEU, 13a"
    assert bleu.main([*paths[1:], "--lang", "de"]) == 0
    assert "sacreBLEU 100.00" in capsys.readouterr().out


def test_command_line_refuses_different_line_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = _write(tmp_path, one=["a"], reference=["a", "b"])
    assert bleu.main([*paths, "--lang", "de"]) == 1
    error = capsys.readouterr().err
    assert "one has 1 lines" in error
    assert "reference has 2" in error
    assert error.count("\n") == 1


@needs_real
def test_known_score_of_newstest2013() -> None:
    hypotheses = bleu.read_lines(REAL / "scored/newstest2013.system.de")
    references = bleu.read_lines(REAL / "newstest/newstest2013.en-de.de")
    assert f"{bleu.sacrebleu(hypotheses, references)[0]:.2f}" == "28.09"
    assert testsets.name_of(references) == "newstest2013, de (sacreBLEU: wmt13)"


def _as_sacrebleu_prints(lines: list[str]) -> list[str]:
    return [re.sub(r"\s+", " ", line.strip()) for line in lines]


@needs_real
@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("newstest2014.en-de.de", "newstest2014/full, de (sacreBLEU: wmt14/full)"),
        ("newstest2014.en-fr.fr", "newstest2014/full, fr (sacreBLEU: wmt14/full)"),
        ("newstest2013.en-de.de", "newstest2013, de (sacreBLEU: wmt13)"),
        ("newstest2013.en-fr.fr", "newstest2013, fr (sacreBLEU: wmt13)"),
    ],
)
def test_sets_are_known_with_no_break_spaces_and_without(file: str, name: str) -> None:
    original = bleu.read_lines(REAL / "newstest" / file)
    assert testsets.name_of(original) == testsets.name_of(_as_sacrebleu_prints(original)) == name
    assert testsets.name_of([*original[:-1], f"{original[-1]}!"]) is None


def test_white_space_does_not_decide_which_set_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    known = "".join(f"{line}\n" for line in ("708 M£ sur l'exercice", "", "Deux"))
    monkeypatch.setattr(testsets, "_NAMES", {hashlib.sha256(known.encode()).hexdigest(): "known"})
    assert testsets.name_of(["708\u00a0M£  sur\tl'exercice\r", "", " Deux\u2009"]) == "known"
    assert testsets.name_of(["708M£ sur l'exercice", "", "Deux"]) is None
    assert testsets.name_of(["708 M£ sur l'exercice", "Deux"]) is None


@needs_real
def test_known_scores_of_filtered_newstest2014() -> None:
    hypotheses = bleu.read_lines(REAL / "scored/newstest2014.filtered2737.system.de")
    references = bleu.read_lines(REAL / "scored/newstest2014.filtered2737.reference.de")
    steps = bleu.paper_way(hypotheses, references, "de")
    assert testsets.name_of(references) == "newstest2014/filtered, de (sacreBLEU: wmt14)"
    full = bleu.read_lines(REAL / "newstest/newstest2014.en-de.de")
    assert testsets.name_of(full) == "newstest2014/full, de (sacreBLEU: wmt14/full)"
    assert testsets.name_of(full[1:]) is None
    assert [f"{step.bleu:.2f}" for step in steps] == ["29.82", "29.92", "30.53", "31.62"]
