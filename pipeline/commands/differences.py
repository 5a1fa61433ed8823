"""Differences between rows that were trained with the same seeds, with 95% intervals by how the runs are compared."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nmt.evaluation.paired import mean_difference

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CAPTION = """\
Differences from base with 95% intervals. Unpaired: as if all runs were independent. Paired: between the runs of one
seed, which share the order of the sentences and, where shapes agree, first weights and dropout masks. Pooled: paired,
with the error estimated from all rows together. Lines: these models, with the lines of the validation set resampled.
"""


@dataclass(frozen=True)
class ConfidenceInterval:
    """A mean and its 95% interval; unbounded for a single seed."""

    mean: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> ConfidenceInterval:
        """Return the interval of one value per seed, by Student's t over seeds."""
        if len(values) < 2:
            return ConfidenceInterval(values[0], -math.inf, math.inf)
        error = statistics.stdev(values) / math.sqrt(len(values))
        return _around(statistics.fmean(values), error, len(values) - 1)

    def text(self, digits: int, sign: str = "") -> str:
        """Return the mean, then the bounds in parentheses."""
        if math.isinf(self.low):
            return f"{self.mean:{sign}.{digits}f} (one seed)"
        return f"{self.mean:{sign}.{digits}f} ({self.low:{sign}.{digits}f} to {self.high:{sign}.{digits}f})"


def _around(mean: float, error: float, freedom: float) -> ConfidenceInterval:
    """Return the interval of a mean with this standard error and these degrees of freedom."""
    from scipy.stats import t

    half = float(t.ppf(0.975, freedom)) * error if error else 0.0
    return ConfidenceInterval(mean, mean - half, mean + half)


def unpaired(ours: Sequence[float], base: Sequence[float]) -> ConfidenceInterval:
    """Return the difference of the means as if all runs were independent, by Welch's t."""
    mean = statistics.fmean(ours) - statistics.fmean(base)
    if min(len(ours), len(base)) < 2:
        return ConfidenceInterval(mean, -math.inf, math.inf)
    parts = [statistics.variance(values) / len(values) for values in (ours, base)]
    scale = sum(part**2 / (len(values) - 1) for part, values in zip(parts, (ours, base), strict=True))
    return _around(mean, math.sqrt(sum(parts)), sum(parts) ** 2 / scale if scale else 1.0)


def paired(ours: Sequence[float], base: Sequence[float]) -> ConfidenceInterval:
    """Return the mean of the differences between the runs of each seed, by Student's t over seeds."""
    return ConfidenceInterval.of([one - other for one, other in zip(ours, base, strict=True)])


def pooled(rows: Mapping[str, Sequence[float]], ours: str, base: str) -> ConfidenceInterval:
    """Return the difference of two rows with the error estimated from all rows: a layout of rows by seeds.

    Every row has a mean and every seed an effect on all rows; what remains is taken to vary equally in all rows. So the
    error has (rows - 1) x (seeds - 1) degrees of freedom, in place of the seeds - 1 that one pair of rows has.
    """
    seeds = len(rows[base])
    mean = statistics.fmean(rows[ours]) - statistics.fmean(rows[base])
    freedom = (len(rows) - 1) * (seeds - 1)
    if freedom < 1:
        return ConfidenceInterval(mean, -math.inf, math.inf)
    total = statistics.fmean(value for values in rows.values() for value in values)
    effects = [statistics.fmean(values[seed] for values in rows.values()) - total for seed in range(seeds)]
    rest = sum(
        (value - statistics.fmean(values) - effect) ** 2
        for values in rows.values()
        for value, effect in zip(values, effects, strict=True)
    )
    return _around(mean, math.sqrt(2 * rest / freedom / seeds), freedom)


def table(
    measured: Mapping[str, Mapping[str, Sequence[float]]], lines: Mapping[str, Sequence[NDArray[np.int64]]]
) -> list[str]:
    """Return the lines of a Markdown table of every row's difference from base, by how the runs are compared.

    `measured`: row -> `ppl` and `bleu` -> one value per seed. `lines`: row -> line statistics, one array per seed.
    """
    found = [CAPTION, "| row | measure | unpaired | paired | pooled | lines |", "|---|---|---|---|---|---|"]
    for row in measured:
        for kind, title, digits in (("ppl", "PPL", 2), ("bleu", "BLEU", 1)):
            if row == "base":
                continue
            ours, base = measured[row][kind], measured["base"][kind]
            of_kind = {name: values[kind] for name, values in measured.items()}
            intervals = [unpaired(ours, base), paired(ours, base), pooled(of_kind, row, "base")]
            if kind == "bleu":
                intervals.append(ConfidenceInterval(*mean_difference(lines[row], lines["base"])))
            cells = [interval.text(digits, "+") for interval in intervals] + [""] * (kind == "ppl")
            found.append(f"| `{row}` | {title} | {' | '.join(cells)} |")
    return [*found, ""]
