"""The report's pictures: measurements over updates, and Table 2 as BLEU over training cost."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config import rows
from pipeline.config.settings import RunSettings
from pipeline.reporting.page import Figure

SIZE = (9.0, 3.2)
"""Width and height of a figure in inches."""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """One plot of a figure: named series of points."""

    title: str
    x: str
    series: Mapping[str, Points]
    scatter: bool = False
    """Draw single points with their names over a logarithmic x axis, instead of lines over a linear one."""


def draw(panels: Sequence[Panel], caption: str, name: str) -> Figure:
    """Return the panels side by side as SVG; equal panels give equal bytes. Points that are not finite are left out."""
    # Not pyplot: it looks for a screen. Matplotlib takes half a second to import.
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    # Without a salt, the ids inside an SVG are random.
    with matplotlib.rc_context({"svg.hashsalt": "report", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3}):
        canvas = Canvas(figsize=SIZE, layout="constrained")
        for axes, panel in zip(canvas.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            axes.set(title=panel.title, xlabel=panel.x, xscale="log" if panel.scatter else "linear")
            for label, points in panel.series.items():
                finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
                axes.plot(
                    *zip(*finite, strict=True) if finite else ([], []), "o" if panel.scatter else "-", label=label
                )
                for point in finite if panel.scatter else ():
                    axes.annotate(label, point, textcoords="offset points", xytext=(4, 4), fontsize=7)
            if panel.scatter:
                axes.margins(x=0.15, y=0.12)  # Leaves room for the names.
            elif len(panel.series) > 1:
                axes.legend()
        content = io.BytesIO()
        canvas.savefig(content, format="svg", metadata={"Date": None})
    return Figure(content.getvalue(), caption, name)


def curves(intervals: Path, validations: Path) -> Figure:
    """Return losses, learning rate and speed over updates, from the two tables that training writes."""

    def series(path: Path, column: str) -> Points:
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
    return draw(panels, "Training", "training")


def against_cost(run: RunSettings, metrics: Mapping[str, Any]) -> Figure:
    """Return Table 2 as a picture: BLEU over training cost in FLOPs, with this run in it."""
    table = rows.table()
    published = {entry.name: entry.on(run.pair) for entry in table.literature}
    published |= {f"Transformer ({name})": row.paper.table2.get(run.pair) for name, row in table.rows.items()}
    points: dict[str, Points] = {
        name: [(result.flops, result.bleu)] for name, result in published.items() if result and result.flops
    }
    points["this run"] = [(metrics["train_flops_paper"], metrics["bleu_paper_way"])]
    panel = Panel("BLEU, the paper's way", "training FLOPs, the paper's way", points, scatter=True)
    return draw([panel], f"Table 2, {run.pair}: newstest2014; this run: {metrics['bleu_set']}", "cost")
