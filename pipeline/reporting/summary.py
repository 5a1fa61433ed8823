"""A finished run in three lines, for the end of `make run`."""

from __future__ import annotations

from pathlib import Path

from pipeline.stage import read_json

METRICS = Path("results/metrics.json")
REPORT = Path("results/report.html")
MODEL = Path("models/average")


def text() -> str:
    """BLEU or F1, its interval and set, the report and the model. Raises InputError where no run has been scored."""
    scores = read_json(METRICS)
    key, title, scorer = ("bleu", "BLEU", "sacreBLEU") if "bleu" in scores else ("f1", "F1", "EVALB")
    interval = f"95% interval {scores[f'{key}_low']:.1f} to {scores[f'{key}_high']:.1f}"
    return (
        f"{title:<7} {scores[key]:.1f} ({interval}) on {scores[f'{key}_set']}; {scorer}, {scores[f'{key}_signature']}\n"
        f"report  {REPORT}\n"
        f"model   {MODEL}"
    )
