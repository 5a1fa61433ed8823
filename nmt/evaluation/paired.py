"""Differences of BLEU between systems trained in pairs, under resampling of the lines that all of them translated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from nmt.config import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

SAMPLES = 1000
"""Resamples of the bootstrap (Koehn 2004)."""
SEED = 12345
"""Of the resamples; sacreBLEU's."""


def line_statistics(hypotheses: Sequence[str], references: Sequence[str]) -> NDArray[np.int64]:
    """Return what corpus BLEU (sacreBLEU, 13a) sums over lines, [lines, 10]: 4 matches, 4 totals, both lengths."""
    from sacrebleu.metrics.bleu import BLEU

    if len(hypotheses) != len(references):
        raise InputError(f"there are {len(hypotheses)} translations for {len(references)} references: give one each")
    metric = BLEU(effective_order=True)
    scores = [
        metric.sentence_score(hypothesis, [line]) for hypothesis, line in zip(hypotheses, references, strict=True)
    ]
    return np.array([[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores])


def bleu_of(sums: NDArray[np.int64]) -> float:
    """Return the corpus BLEU of summed line statistics, [10], as sacreBLEU's default has it."""
    from sacrebleu.metrics.bleu import BLEU

    values = [int(value) for value in sums]
    return float(BLEU.compute_bleu(values[:4], values[4:8], values[8], values[9], smooth_method="exp").score)


def mean_difference(
    systems: Sequence[NDArray[np.int64]], baselines: Sequence[NDArray[np.int64]]
) -> tuple[float, float, float]:
    """Return the mean over pairs of the difference in BLEU, and its 95% interval under resampling of the lines.

    `systems`, `baselines`: line statistics, one of each per pair, all of the same references. Every resample takes the
    same lines of all of them. The interval covers the choice of lines for these models, not that of the models.
    """
    lines = len(systems[0])
    chance = np.random.default_rng(SEED)

    def difference(weights: NDArray[np.int64]) -> float:
        pairs = zip(systems, baselines, strict=True)
        return float(np.mean([bleu_of(weights @ system) - bleu_of(weights @ baseline) for system, baseline in pairs]))

    resamples = chance.multinomial(lines, np.full(lines, 1 / lines), size=SAMPLES)
    low, high = np.percentile([difference(weights) for weights in resamples], [2.5, 97.5])
    return difference(np.ones(lines, dtype=np.int64)), float(low), float(high)
