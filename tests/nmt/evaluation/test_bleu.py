"""Scores against hand-worked cases and against system outputs whose scores are known."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest
from command_line import wmt
from numpy.typing import NDArray

from nmt.config import InputError
from nmt.evaluation import bleu

REAL = Path(__file__).resolve().parents[3].parent / "shared/real"
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


def test_french_by_hand() -> None:
    # 13a: 6 of 7 tokens match, then 5 of 6, 4 of 5, 3 of 4. Moses parts `D'` from `eau`: 7 of 8, then 6 of 7 and so on.
    steps = bleu.paper_way(["D'eau de la mer est bleue ."], ["L'eau de la mer est bleue ."], "fr")
    assert steps[0].bleu == pytest.approx(100 * (6 / 7 * 5 / 6 * 4 / 5 * 3 / 4) ** (1 / 4))
    assert steps[1].bleu == pytest.approx(100 * (7 / 8 * 6 / 7 * 5 / 6 * 4 / 5) ** (1 / 4))


def test_every_double_quote_is_made_plain_and_nothing_else() -> None:
    assert bleu.plain_quotes('\u201ca\u201d \u201eb\u201f \u2018c\u2019 \u00abd\u00bb "e"') == (
        '"a" "b" \u2018c\u2019 \u00abd\u00bb "e"'
    )


def _ngrams(line: str, n: int) -> Counter[tuple[str, ...]]:
    words = line.split()
    return Counter(tuple(words[at : at + n]) for at in range(len(words) - n + 1))


def _statistics(hypothesis: str, reference: str) -> list[int]:
    """Lengths, then matches and candidates of each order (Papineni et al. 2002); the lines are tokens."""
    found = [len(hypothesis.split()), len(reference.split())]
    for n in range(1, 5):
        ours = _ngrams(hypothesis, n)
        found += [(ours & _ngrams(reference, n)).total(), ours.total()]
    return found


def _bleu(statistics: NDArray[np.int64]) -> float:
    """In percent, of statistics that are summed over lines."""
    length, reference_length, *orders = statistics.tolist()
    logarithm = sum(math.log(orders[2 * n] / orders[2 * n + 1]) for n in range(4)) / 4
    return 100 * math.exp(logarithm + min(0.0, 1 - reference_length / length))


def test_interval_and_p_value_are_those_of_a_bootstrap_written_out() -> None:
    """Koehn 2004 with the null hypothesis of equal systems, as in sacreBLEU: resampled differences about their mean."""
    chance = Random(1)
    references = [" ".join(chance.choices("abcdefgh", k=30)) for _ in range(12)]
    systems = [
        [" ".join(word if chance.random() < kept else "x" for word in line.split()) for line in references]
        for kept in (0.80, 0.82)
    ]
    sums = np.array([[_statistics(*pair) for pair in zip(lines, references, strict=True)] for lines in systems])
    drawn = np.random.default_rng(12345).choice(12, size=(1000, 12), replace=True)
    resampled = np.array([[_bleu(lines[sample].sum(0)) for sample in drawn] for lines in sums])
    low, high = np.sort(resampled[0])[[25, 974]]
    interval = bleu.confidence(systems[0], references)
    assert interval.low == pytest.approx(resampled[0].mean() - (high - low) / 2, abs=1e-3)
    assert interval.high == pytest.approx(resampled[0].mean() + (high - low) / 2, abs=1e-3)
    difference = _bleu(sums[1].sum(0)) - _bleu(sums[0].sum(0))
    apart = np.abs(resampled[1] - resampled[0])
    p_value = ((apart - apart.mean() >= abs(difference)).sum() + 1) / 1001
    found = bleu.compare(systems[0], systems[1], references)
    assert found.difference == pytest.approx(difference, abs=1e-6)
    assert found.p_value == pytest.approx(p_value, abs=0.003)
    assert 0.005 < p_value < 0.6
    turned = bleu.compare(systems[1], systems[0], references)
    assert turned.difference == pytest.approx(-difference, abs=1e-6)


def test_all_scores_of_a_system_are_those_asked_for_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    known = hashlib.sha256("".join(f"{line}\n" for line in REFERENCES).encode()).hexdigest()
    monkeypatch.setattr(bleu, "_SETS", {known: "a known set"})
    found = bleu.score(HYPOTHESES, REFERENCES, "de")
    assert (found.bleu, found.signature) == bleu.sacrebleu(HYPOTHESES, REFERENCES)
    assert (found.chrf, found.chrf_signature) == bleu.chrf(HYPOTHESES, REFERENCES)
    assert found.interval == bleu.confidence(HYPOTHESES, REFERENCES)
    assert found.paper_way == bleu.paper_way(HYPOTHESES, REFERENCES, "de")
    assert found.bleu_paper_way == found.paper_way[3].bleu != found.paper_way[0].bleu
    steps = [dataclasses.replace(step, bleu=float(number)) for number, step in enumerate(found.paper_way)]
    assert dataclasses.replace(found, paper_way=steps).bleu_paper_way == len(steps) - 1
    assert (found.lines, found.set) == (2, "a known set")
    assert [step.name for step in bleu.score(HYPOTHESES, REFERENCES, "fr").paper_way][-1] == "Moses tokens"


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
    with pytest.raises(InputError, match=r"^there are 1 translations for 2 references: give one line for each line$"):
        function(["a"], ["a", "b"])
    with pytest.raises(InputError, match=r"^there is no line to score$"):
        function([], [])


def test_all_texts_of_a_comparison_have_as_many_lines() -> None:
    for arguments in ((["a"], ["a", "b"], ["a", "b"]), (["a", "b"], ["a"], ["a", "b"])):
        with pytest.raises(InputError, match="1 translations for 2 references"):
            bleu.compare(*arguments)
    with pytest.raises(InputError, match="1 translations for 2 references"):
        bleu.paper_way(["a"], ["a", "b"], "de")


def test_lines_end_at_newline_alone(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("a\rb\u2028c\n\nd\n".encode())
    assert bleu.read_lines(path) == ["a\rb\u2028c", "", "d"]
    path.write_bytes(b"\n")
    assert bleu.read_lines(path) == [""]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "text is empty: there is nothing to score$"),
        (b"ok\nab\xff\n", "text, line 2: the byte 0xff at offset 5 is not valid UTF-8 .*convert the text"),
        (None, "text cannot be read: No such file or directory$"),
    ],
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
    assert wmt("bleu", *paths, "--lang", "de", "--json") == 0
    first, second = json.loads(capsys.readouterr().out)
    assert second["bleu"] == pytest.approx(100)
    assert second["difference"] == pytest.approx(100 - first["bleu"])
    assert 0 < second["p_value"] <= 1
    assert first["paper_way_steps"][0]["step"] == "sacreBLEU, 13a"
    assert second == {
        "hypothesis": paths[1], "set": None, "lines": 2, "bleu": pytest.approx(100),
        "bleu_signature": bleu.sacrebleu(REFERENCES, REFERENCES)[1],
        "bleu_low": pytest.approx(100), "bleu_high": pytest.approx(100), "bleu_paper_way": pytest.approx(100),
        "paper_way_steps": [
            {"step": name, "bleu": pytest.approx(100)}
            for name in ("sacreBLEU, 13a", "Moses tokens", "compounds split at hyphens", "unicode quotes made plain")
        ],
        "chrf": pytest.approx(100), "chrf_signature": bleu.chrf(REFERENCES, REFERENCES)[1],
        "difference": second["difference"], "p_value": second["p_value"],
    }  # fmt: skip
    interval = bleu.confidence(HYPOTHESES, REFERENCES)
    assert (first["bleu_low"], first["bleu_high"]) == (interval.low, interval.high)
    assert first["chrf"] == bleu.chrf(HYPOTHESES, REFERENCES)[0]
    assert "difference" not in first


def test_command_line_prints_a_report_for_people(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = hashlib.sha256("".join(f"{line}\n" for line in REFERENCES).encode()).hexdigest()
    monkeypatch.setattr(bleu, "_SETS", {known: "a known set ☃"})
    paths = _write(tmp_path, one=HYPOTHESES, two=REFERENCES, reference=REFERENCES)
    assert wmt("bleu", *paths, "--lang", "fr") == 0
    scores, chrf = bleu.score(HYPOTHESES, REFERENCES, "fr"), bleu.chrf(HYPOTHESES, REFERENCES)
    p_value = bleu.compare(HYPOTHESES, REFERENCES, REFERENCES).p_value
    assert capsys.readouterr().out.splitlines() == [
        f"{paths[0]}: 2 lines of a known set ☃",
        f"  sacreBLEU {scores.bleu:.2f}, 95% interval {scores.interval.low:.2f} to {scores.interval.high:.2f}",
        f"    {scores.signature}",
        f"  the paper's way {scores.bleu_paper_way:.2f}, by steps:",
        f"    {scores.bleu:.2f} sacreBLEU, 13a",
        f"    {scores.bleu_paper_way:.2f} Moses tokens",
        f"  chrF {chrf[0]:.2f}",
        f"    {chrf[1]}",
        f"{paths[1]}: 2 lines of a known set ☃",
        "  sacreBLEU 100.00, 95% interval 100.00 to 100.00",
        f"    {scores.signature}",
        "  the paper's way 100.00, by steps:",
        "    100.00 sacreBLEU, 13a",
        "    100.00 Moses tokens",
        "  chrF 100.00",
        f"    {chrf[1]}",
        f"  against the first: +{100 - scores.bleu:.2f} sacreBLEU, p = {p_value:.3f} (paired bootstrap)",
    ]
    assert wmt("bleu", *paths[1:], "--lang", "de", "--json") == 0
    written = capsys.readouterr().out
    assert written.startswith('{\n  "hypothesis"')
    assert '"set": "a known set ☃"' in written


def test_command_line_needs_the_language(capsys: pytest.CaptureFixture[str]) -> None:
    assert wmt("bleu", "one", "reference") == 2
    assert "Missing option '--lang'" in capsys.readouterr().err


def test_command_line_refuses_different_line_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = _write(tmp_path, one=["a"], reference=["a", "b"])
    assert wmt("bleu", *paths, "--lang", "de") == 1
    assert capsys.readouterr().err == (
        f"bleu: {paths[0]} has 1 lines, {paths[1]} has 2: give one translation for each reference\n"
    )


@needs_real
def test_known_score_of_newstest2013() -> None:
    hypotheses = bleu.read_lines(REAL / "scored/newstest2013.system.de")
    references = bleu.read_lines(REAL / "newstest/newstest2013.en-de.de")
    assert f"{bleu.sacrebleu(hypotheses, references)[0]:.2f}" == "28.09"
    assert bleu.known_set(references) == "newstest2013, de (sacreBLEU: wmt13)"


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
    assert bleu.known_set(original) == bleu.known_set(_as_sacrebleu_prints(original)) == name
    assert bleu.known_set([*original[:-1], f"{original[-1]}!"]) is None


def test_white_space_does_not_decide_which_set_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    known = "".join(f"{line}\n" for line in ("708 M£ sur l'exercice", "", "Deux"))
    monkeypatch.setattr(bleu, "_SETS", {hashlib.sha256(known.encode()).hexdigest(): "known"})
    assert bleu.known_set(["708\u00a0M£  sur\tl'exercice\r", "", " Deux\u2009"]) == "known"
    assert bleu.known_set(["708M£ sur l'exercice", "", "Deux"]) is None
    assert bleu.known_set(["708 M£ sur l'exercice", "Deux"]) is None


@needs_real
def test_known_scores_of_filtered_newstest2014() -> None:
    hypotheses = bleu.read_lines(REAL / "scored/newstest2014.filtered2737.system.de")
    references = bleu.read_lines(REAL / "scored/newstest2014.filtered2737.reference.de")
    steps = bleu.paper_way(hypotheses, references, "de")
    assert bleu.known_set(references) == "newstest2014/filtered, de (sacreBLEU: wmt14)"
    full = bleu.read_lines(REAL / "newstest/newstest2014.en-de.de")
    assert bleu.known_set(full) == "newstest2014/full, de (sacreBLEU: wmt14/full)"
    assert bleu.known_set(full[1:]) is None
    assert [f"{step.bleu:.2f}" for step in steps] == ["29.82", "29.92", "30.53", "31.62"]
