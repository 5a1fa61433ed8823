"""Bootstrap resampling of the lines of a test set (Koehn 2004): confidence intervals, and paired comparisons.

Scores are functions of statistics that are summed over lines. Draws, intervals and p-values are sacreBLEU's.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SAMPLES = 1000
SEED = 12345
Score = Callable[[NDArray[np.int64]], float]  # from summed statistics, [k]


@dataclass(frozen=True)
class Comparison:
    difference: float  # in points of the score; positive if the system is better
    p_value: float  # the probability of a difference at least as large by chance


def resampled(statistics: NDArray[np.int64], score: Score) -> NDArray[np.float64]:
    """Return the scores of SAMPLES resamples of line statistics, [lines, k]; systems with as many lines share draws."""
    lines = len(statistics)
    generator = np.random.default_rng(SEED)
    samples = (generator.choice(lines, size=lines) for _ in range(SAMPLES))
    return np.array([score(np.bincount(sample, minlength=lines) @ statistics) for sample in samples])


def interval(statistics: NDArray[np.int64], score: Score) -> tuple[float, float]:
    """Return the 95% interval of a score: the resamples' mean, plus and minus half the width of their central 95%.

    Unlike sacreBLEU's, it ends at 0 and 100, beyond which no score is.
    """
    scores = np.sort(resampled(statistics, score))
    half = (scores[SAMPLES - SAMPLES // 40 - 1] - scores[SAMPLES // 40]) / 2
    return max(0.0, float(scores.mean() - half)), min(100.0, float(scores.mean() + half))


def compare(baseline: NDArray[np.int64], system: NDArray[np.int64], score: Score) -> Comparison:
    """Compare two systems on the same lines, whose statistics are [lines, k], by paired bootstrap resampling."""
    difference = score(system.sum(0)) - score(baseline.sum(0))
    if not difference or len(system) == 1:  # Nothing can be said of equal systems, and by one line.
        return Comparison(difference, 1.0)
    apart = np.abs(resampled(system, score) - resampled(baseline, score))
    exceeding = int((apart - apart.mean() > abs(difference)).sum())
    return Comparison(difference, (exceeding + 1) / (SAMPLES + 1))
