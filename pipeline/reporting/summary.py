"""A finished run in three lines, for the end of `make run`."""

from __future__ import annotations

from pathlib import Path

from pipeline.stage import read_json

METRICS = Path("results/metrics.json")
REPORT = Path("results/report.html")
MODEL = Path("models/average")


def text() -> str:
    """BLEU, its interval and set, the report and the model. Raises InputError where no run has been scored."""
    scores = read_json(METRICS)
    interval = f"95% interval {scores['bleu_low']:.1f} to {scores['bleu_high']:.1f}"
    return (
        f"BLEU    {scores['bleu']:.1f} ({interval}) on {scores['bleu_set']}; sacreBLEU, {scores['bleu_signature']}\n"
        f"report  {REPORT}\n"
        f"model   {MODEL}"
    )
