"""Intervals and differences of BLEU and F1: the scorers' own numbers, and what pairing does."""

import random
import tracemalloc

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU

from nmt import bootstrap
from nmt.evaluation import bleu
from nmt.evaluation.scoring import TreeScorer

WORDS = ["the", "old", "man", "sees", "a", "dog", "and", "she", "sleeps", "well", "while", "we", "do", "not"]


def texts(errors: float, seed: int) -> tuple[list[str], list[str]]:
    """Translations of which a share of the words is wrong, and references."""
    chance, mistakes = random.Random(1), random.Random(seed)
    references = [" ".join(chance.choices(WORDS, k=12)) for _ in range(150)]
    changed = [" ".join("no" if mistakes.random() < errors else word for word in line.split()) for line in references]
    return changed, references


def test_interval_and_p_value_are_sacrebleus() -> None:
    from sacrebleu.significance import PairedTest

    (first, references), (second, _) = texts(0.20, 1), texts(0.18, 2)
    _, results = PairedTest([("0", first), ("1", second)], {"BLEU": BLEU()}, [references], "bs", n_samples=1000)()
    one, two = results["BLEU"]
    low, high = bootstrap.interval(bleu.line_statistics(BLEU(), first, references), bleu.score_of(BLEU()))
    assert low == pytest.approx(one.mean - one.ci, abs=1e-4)
    assert high == pytest.approx(one.mean + one.ci, abs=1e-4)
    comparison = bleu.compare(first, second, references, BLEU())
    assert comparison.difference == pytest.approx(two.score - one.score)
    assert comparison.p_value == pytest.approx(two.p_value, abs=1e-9)
    assert 0.002 < comparison.p_value < 0.9
    turned = bleu.compare(second, first, references, BLEU())
    assert turned == bootstrap.Comparison(-comparison.difference, comparison.p_value)


def test_the_interval_of_few_lines_ends_where_scores_end() -> None:
    right = np.array([[1], [1], [1], [1], [0]])
    low, high = bootstrap.interval(right, lambda sums: 20.0 * float(sums[0]))
    assert (40.0 < low < 60.0, high) == (True, 100.0)
    assert bootstrap.interval(1 - right, lambda sums: 20.0 * float(sums[0]))[0] == 0.0


def test_a_resample_is_drawn_at_a_time() -> None:
    """All draws of a million lines would take 8 GB."""
    tracemalloc.start()
    bootstrap.interval(np.ones((2_000, 1), np.int64), lambda sums: float(sums[0]))
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


GOLD = "(S (NP (D the) (N dog)) (VP (V sees) (NP (D a) (N man))))"  # four brackets
FLAT = "(S (NP (D the) (N dog)) (V sees) (D a) (N man))"  # two brackets, which the gold tree has
OTHER = "(S (NP (D the) (N dog)) (VP (V sees) (PP (D a) (N man))))"  # four brackets, of which the gold tree has three
BROKEN = "(S (NP the"


@pytest.mark.parametrize(
    ("baseline", "system", "difference", "p_value"),
    [
        # Better on eleven sentences and worse on ten.
        ([*[OTHER] * 11, *[GOLD] * 89], [*[GOLD] * 11, *[OTHER] * 10, *[GOLD] * 79], 0.25, (0.2, 1.0)),
        # Both fail on half of the sentences: resampled apart, p would be 0.2.
        ([*[FLAT] * 50, *[OTHER] * 6, *[GOLD] * 44], [FLAT] * 50 + [GOLD] * 50, None, (0.0, 0.03)),
        # Equal systems and one sentence say nothing; nine that are all better do.
        ([OTHER] * 9 + [GOLD], [OTHER] * 9 + [GOLD], 0.0, (1.0, 1.0)),
        ([FLAT], [GOLD], None, (1.0, 1.0)),
        ([FLAT] * 9, [GOLD] * 9, None, (0.0, 0.001)),
        # A sentence that cannot be scored counts for neither side of its F1.
        ([BROKEN, OTHER, GOLD, GOLD], [GOLD, GOLD, "", GOLD], 100 * (1 - 22 / 24), (0.0, 1.0)),
    ],
)
def test_p_values_of_parses(
    baseline: list[str], system: list[str], difference: float | None, p_value: tuple[float, float]
) -> None:
    comparison = TreeScorer().compare(baseline, system, [GOLD] * len(baseline))
    assert difference is None or comparison.difference == pytest.approx(difference)
    assert p_value[0] <= comparison.p_value <= p_value[1]
