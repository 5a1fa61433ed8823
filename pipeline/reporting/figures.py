"""The report's pictures: what was measured over the updates, and Table 2 as BLEU over cost."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config import rows
from pipeline.config.settings import RunSettings
from pipeline.reporting import page
from pipeline.reporting.page import Figure, Panel


def curves(intervals: Path, validations: Path) -> Figure:
    """Losses, learning rate and speed over the updates, from the training's tables."""

    def series(path: Path, column: str) -> page.Points:
        with path.open(encoding="utf-8", newline="") as file:
            return [(float(row["update"]), float(row[column])) for row in csv.DictReader(file)]

    losses = {
        "training, smoothed": series(intervals, "loss"),
        "training": series(intervals, "nll"),
        "validation": series(validations, "valid_loss"),
    }
    panels = [
        Panel("cross-entropy, nats a subword", "update", losses),
        Panel("learning rate", "update", {"": series(intervals, "learning_rate")}),
        Panel("target tokens a second", "update", {"": series(intervals, "tokens_per_second")}),
    ]
    return page.draw(panels, "Training", "training")


def against_cost(run: RunSettings, metrics: Mapping[str, Any]) -> Figure:
    """Table 2 as a picture: BLEU over training cost."""
    points: dict[str, page.Points] = {}
    for entry in rows.table().literature:
        found = entry.on(run.pair)
        if found is not None and found.flops is not None:
            points[entry.name] = [(found.flops, found.bleu)]
    for name, row in rows.table().rows.items():
        ours = row.paper.table2.get(run.pair)
        if ours is not None and ours.flops is not None:
            points[f"Transformer ({name})"] = [(ours.flops, ours.bleu)]
    points["this run"] = [(metrics["train_flops_paper"], metrics["bleu_paper_way"])]
    panel = Panel("BLEU, the paper's way", "training FLOPs, the paper's way", points, logarithmic=True, lines=False)
    return page.draw([panel], f"Table 2, {run.pair}: newstest2014; this run: {metrics['bleu_set']}", "cost")
