"""Paired differences of BLEU and F1: the scorers' own numbers, and intervals that pairing makes narrow."""

from __future__ import annotations

import functools
import random
from pathlib import Path

import numpy as np
import pytest

from nmt.config import InputError
from nmt.evaluation import bleu, evalb, paired

WORDS = ["the", "old", "man", "sees", "a", "dog", "and", "she", "sleeps", "well", "while", "we", "do", "not"]


def texts(errors: float, seed: int) -> tuple[list[str], list[str]]:
    """References, and translations of which a share of the words is another."""
    chance, mistakes = random.Random(1), random.Random(seed)
    references = [" ".join(chance.choices(WORDS, k=12)) for _ in range(150)]
    changed = [
        " ".join("wrong" if mistakes.random() < errors else word for word in line.split()) for line in references
    ]
    return changed, references


@pytest.mark.parametrize("errors", [0.0, 0.1, 0.5, 1.0])
def test_sums_of_lines_give_sacrebleus_score(errors: float) -> None:
    translations, references = texts(errors, 2)
    statistics = paired.line_statistics(translations, references)
    assert statistics.shape == (150, 10)
    assert paired.bleu_of(statistics.sum(0)) == pytest.approx(bleu.sacrebleu(translations, references)[0], abs=1e-9)


def test_a_difference_is_the_mean_over_pairs_and_has_an_interval() -> None:
    better = [paired.line_statistics(*texts(0.1, seed)) for seed in (1, 2)]
    worse = [paired.line_statistics(*texts(0.2, seed)) for seed in (3, 4)]
    mean, low, high = paired.mean_difference(better, worse)
    each = [paired.bleu_of(one.sum(0)) - paired.bleu_of(other.sum(0)) for one, other in zip(better, worse, strict=True)]
    assert mean == pytest.approx(np.mean(each))
    assert 0 < low < mean < high
    assert paired.mean_difference(worse, better)[0] == pytest.approx(-mean)


def test_shared_lines_cancel_in_a_pair() -> None:
    """A system and one that translates three lines otherwise: hard and easy lines move both alike."""
    translations, references = texts(0.3, 1)
    other = ["wrong", *translations[1:]]
    one, two = (paired.line_statistics(lines, references) for lines in (translations, other))
    assert paired.mean_difference([one], [one]) == (0.0, 0.0, 0.0)
    _, low, high = paired.mean_difference([two], [one])
    alone = bleu.confidence(translations, references)
    assert 0 < high - low < 0.2 * (alone.high - alone.low)


def test_another_number_of_lines_is_refused() -> None:
    with pytest.raises(InputError, match="there are 1 translations for 2 references"):
        paired.line_statistics(["a"], ["a", "b"])


GOLD = "(S (NP (D the) (N dog)) (VP (V sees) (NP (D a) (N man))))"
"""Four brackets."""
FLAT = "(S (NP (D the) (N dog)) (V sees) (D a) (N man))"
"""Two brackets, which the gold tree has."""
OTHER = "(S (NP (D the) (N dog)) (VP (V sees) (PP (D a) (N man))))"
"""Four brackets, of which the gold tree has three."""
BROKEN = "(S (NP the"


def parses(flat: int, other: int, exact: int) -> list[str]:
    """Parses of the gold tree in an order that does not depend on the counts."""
    lines = [FLAT] * flat + [OTHER] * other + [GOLD] * exact
    random.Random(1).shuffle(lines)
    return lines


def test_the_difference_of_two_parsed_files_is_that_of_their_f1(tmp_path: Path) -> None:
    # Matched are 2, 3 or 4 brackets of a sentence: 320 of 400 and 340, and 370 of 400 and 380.
    baseline, system, gold = parses(30, 20, 50), parses(10, 10, 80), [GOLD] * 100
    found = paired.compare_trees(baseline, system, gold)
    assert found.difference == pytest.approx(100 * (740 / 780 - 640 / 740))
    for name, lines in (("gold", gold), ("baseline", baseline), ("system", system)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    first, second = (evalb.read(tmp_path / "gold", tmp_path / name) for name in ("baseline", "system"))
    assert found.difference == pytest.approx(second.total.f1 - first.total.f1)
    assert found.p_value < 0.01
    turned = paired.compare_trees(system, baseline, gold)
    assert turned.difference == -found.difference
    assert turned.p_value == found.p_value


def test_a_difference_by_chance_has_a_large_p_value() -> None:
    gold = [GOLD] * 100
    # The second is better on eleven sentences and worse on ten.
    first = [*[OTHER] * 11, *[GOLD] * 10, *[GOLD] * 79]
    second = [*[GOLD] * 11, *[OTHER] * 10, *[GOLD] * 79]
    found = paired.compare_trees(first, second, gold)
    assert found.difference == pytest.approx(25 / 100)
    assert found.p_value > 0.2
    assert paired.compare_trees(first, first, gold) == bleu.Comparison(0.0, 1.0)


def test_sentences_that_are_hard_for_both_parsers_cancel() -> None:
    """Both fail on half of the sentences. The second is better on six others: resampled apart, p would be 0.2."""
    hard = [FLAT] * 50
    assert paired.compare_trees([*hard, *[OTHER] * 6, *[GOLD] * 44], hard + [GOLD] * 50, [GOLD] * 100).p_value < 0.03


def test_one_sentence_or_sentences_that_are_all_alike_say_nothing() -> None:
    assert paired.compare_trees([FLAT], [GOLD], [GOLD]).p_value == 1
    assert paired.compare_trees([FLAT] * 9, [GOLD] * 9, [GOLD] * 9).p_value == 1
    found = bleu.compare(["x"], ["a b c d"], ["a b c d"])
    assert found.difference > 50
    assert found.p_value == 1


def test_the_p_value_is_that_of_sentences_drawn_one_by_one() -> None:
    gold = [GOLD] * 60
    baseline, system = [OTHER] * 8 + [GOLD] * 52, [GOLD] * 8 + [OTHER] * 5 + [GOLD] * 47
    found = paired.compare_trees(baseline, system, gold)
    sides = [evalb.score_lines(gold, lines, gold_tags=True).sentences for lines in (baseline, system)]
    kinds = [0] * 8 + [8] * 5 + [13] * 47  # The first sentence that is like this one on both sides.
    assert all(side[index] == side[kind] for side in sides for index, kind in enumerate(kinds))

    @functools.cache
    def difference(*drawn: int) -> float:
        first, second = (evalb.totals([side[index] for index in drawn]).f1 for side in sides)
        return abs(second - first)

    chance = random.Random(7)
    differences = [difference(*sorted(chance.choices(kinds, k=60))) for _ in range(1000)]
    mean = float(np.mean(differences))
    expected = np.mean([one - mean > found.difference for one in differences])
    assert 0.05 < expected < 0.5
    assert found.p_value == pytest.approx(expected, abs=0.05)


def test_a_sentence_that_cannot_be_scored_counts_for_neither_side_of_its_f1() -> None:
    gold = [GOLD] * 4
    baseline, system = [BROKEN, OTHER, GOLD, GOLD], [GOLD, GOLD, "", GOLD]
    assert paired.tree_statistics(baseline, gold).tolist() == [[0, 0], [3, 8], [4, 8], [4, 8]]
    found = paired.compare_trees(baseline, system, gold)
    assert found.difference == pytest.approx(100 * (1 - 22 / 24))


def test_another_number_of_trees_is_refused() -> None:
    with pytest.raises(InputError, match="GOLD has 2 sentences and PARSED has 1: give a line for each line"):
        paired.tree_statistics([GOLD], [GOLD, GOLD])
