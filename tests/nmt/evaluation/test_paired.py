"""Paired differences of BLEU: sacreBLEU's own numbers, and intervals that pairing makes narrow."""

from __future__ import annotations

import random

import numpy as np
import pytest

from nmt.config import InputError
from nmt.evaluation import bleu, paired

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
