"""The table of an ablation: means over seeds, their intervals, and what they say of the paper's differences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pipeline.config import rows


class Interval(NamedTuple):
    """A mean over seeds and its 95% interval by Student's t; unbounded for a single seed."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        from scipy.stats import t

        mean, half = statistics.fmean(values), math.inf
        if len(values) > 1:
            half = float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
        return cls(mean, mean - half, mean + half)

    def text(self, digits: int, sign: str = "") -> str:
        mean, low, high = (f"{value:{sign}.{digits}f}" for value in self)
        return f"{mean} (one seed)" if math.isinf(self.low) else f"{mean} ({low} to {high})"


def trend(difference: Interval, paper: float | None, digits: int) -> str:
    """Return a row's difference from base, the paper's, and whether the two agree."""
    if paper is None:
        return difference.text(digits, "+")
    agrees = "as in the paper" if difference.mean * paper > 0 else "against the paper"
    verdict = "these seeds show none" if difference.low <= 0 <= difference.high else agrees
    return f"{difference.text(digits, '+')}; the paper's {paper:+.{digits}f}: {verdict}"


def markdown(caption: str, measured: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Return the table in Markdown, with every row's differences from base.

    Differences are between the runs of one seed, which share the order of the sentences and, where shapes agree, first
    weights and dropout masks.
    """
    header = "| row | params | PPL | paper's | difference from base | BLEU | paper's | difference from base |"
    lines = [caption, "", header, "|---" * 8 + "|"]
    papers = {row: rows.row(row).paper for row in ("base", *measured)}
    for row, values in measured.items():
        cells = [f"`{row}`", f"{values['params'][0] / 1e6:.2f} M"]
        for key, field, digits in (("valid_ppl", "ppl", 2), ("valid_bleu", "bleu", 1)):
            theirs, of_base = (getattr(papers[name], field) for name in (row, "base"))
            cells += [Interval.of(values[key]).text(digits), str(theirs or ""), ""]
            if row != "base" and "base" in measured:
                pairs = zip(values[key], measured["base"][key], strict=True)
                difference = Interval.of([one - other for one, other in pairs])
                cells[-1] = trend(difference, None if theirs is None else theirs - of_base, digits)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
