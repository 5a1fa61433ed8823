"""Differences of BLEU or F1 between systems, under resampling of the lines that all of them translated or parsed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from nmt.config import InputError
from nmt.evaluation import evalb
from nmt.evaluation.bleu import Comparison

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

    `systems`, `baselines`: line statistics with the same references. `systems[i]` is compared with `baselines[i]`. Each
    resample draws the same lines for every system. The interval covers the choice of lines for these models, not that
    of the models.
    """
    lines = len(systems[0])
    chance = np.random.default_rng(SEED)

    def difference(weights: NDArray[np.int64]) -> float:
        pairs = zip(systems, baselines, strict=True)
        return float(np.mean([bleu_of(weights @ system) - bleu_of(weights @ baseline) for system, baseline in pairs]))

    resamples = chance.multinomial(lines, np.full(lines, 1 / lines), size=SAMPLES)
    low, high = np.percentile([difference(weights) for weights in resamples], [2.5, 97.5])
    return difference(np.ones(lines, dtype=np.int64)), float(low), float(high)


def tree_statistics(parsed: Sequence[str], gold: Sequence[str]) -> NDArray[np.int64]:
    """Return what F1 (EVALB, gold tags) sums over sentences, [sentences, 2]: matched brackets; gold and parsed ones.

    `parsed`, `gold`: trees in Penn bracketing, one a line. A sentence that cannot be scored has zeros, as EVALB leaves
    it out. Raises InputError where `evalb.score_lines` does.
    """
    sentences = evalb.score_lines(gold, parsed, gold_tags=True).sentences
    return np.array([(each.matched, each.gold + each.parsed) for each in sentences], dtype=np.int64)


def f1_of(sums: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return F1 in percent of summed tree statistics, [..., 2] to [...]; 0 without brackets."""
    return np.asarray(200.0 * sums[..., 0] / np.maximum(sums[..., 1], 1))


def compare_trees(baseline: Sequence[str], system: Sequence[str], gold: Sequence[str]) -> Comparison:
    """Compare the F1 of `system` with that of `baseline` by paired bootstrap resampling of the sentences.

    Arguments are trees, one a line. The p-value is sacreBLEU's, of which `bleu.compare` makes use: resampled absolute
    differences, less their mean, are compared with the difference found. Raises InputError as `tree_statistics` does.
    """
    first, second = (tree_statistics(parsed, gold) for parsed in (baseline, system))
    difference = float(f1_of(second.sum(axis=0)) - f1_of(first.sum(axis=0)))
    if not difference:
        return Comparison(0.0, 1.0)
    sentences = len(first)
    chance = np.random.default_rng(SEED)
    weights = chance.multinomial(sentences, np.full(sentences, 1 / sentences), size=SAMPLES)
    resampled = np.abs(f1_of(weights @ second) - f1_of(weights @ first))
    if np.ptp(resampled) < 1e-9:  # Too few sentences, or all alike: nothing can be said.
        return Comparison(difference, 1.0)
    exceeding = int((resampled - resampled.mean() > abs(difference)).sum())
    return Comparison(difference, (exceeding + 1) / (SAMPLES + 1))
