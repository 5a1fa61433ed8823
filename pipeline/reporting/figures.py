"""The report's charts: measurements over updates, and Table 2 as BLEU over training cost.

Each is a view of the page, with a picture for Markdown and for pages without JavaScript.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.common.settings import RunSettings
from pipeline.config import rows
from pipeline.reporting.page import Figure, View

SIZE = (9.0, 3.2)
"""Width and height of a figure in inches."""
MARKERS = "osD^vP*X<>hp"
"""Markers of the points of a picture, which its legend names."""
OWN = "this run"
"""The name of the point that is this run's."""
LARGEST_PERPLEXITY = 200.0
"""Larger ones, of the first updates, would press the rest of the curve flat."""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """One plot of a figure: named series of points."""

    title: str
    x: str
    series: Mapping[str, Points]
    scatter: bool = False
    """Draw single points with a legend over a logarithmic x axis, instead of lines over a linear one."""

    def content(self) -> dict[str, Any]:
        """Return what the page's chart needs; points that are not finite are left out."""
        finite = {name: _finite(points) for name, points in self.series.items()}
        if self.scatter:
            points = [
                {"name": name, "x": x, "y": y, "own": name == OWN} for name, each in finite.items() for x, y in each
            ]
            return {"title": self.title, "x": self.x, "points": points}
        named = [{"name": name, "points": points} for name, points in finite.items()]
        return {"title": self.title, "x": self.x, "series": named}


def _finite(points: Points) -> Points:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def chart(panels: Sequence[Panel], caption: str, name: str) -> View:
    """Return the panels as a view of the page."""
    return View(
        "chart", name, {"panels": [panel.content() for panel in panels]}, fallback=[draw(panels, caption, name)]
    )


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
            for number, (label, points) in enumerate(panel.series.items()):
                finite = _finite(points)
                marker = MARKERS[number % len(MARKERS)] if panel.scatter else "-"
                axes.plot(*zip(*finite, strict=True) if finite else ([], []), marker, label=label)
            if panel.scatter:
                axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7)
            elif len(panel.series) > 1:
                axes.legend()
        content = io.BytesIO()
        canvas.savefig(content, format="svg", metadata={"Date": None})
    return Figure(content.getvalue(), caption, name)


def series(path: Path, column: str) -> Points:
    """Return a column of a table that training wrote, over its updates."""
    with path.open(encoding="utf-8", newline="") as file:
        return [(float(row["update"]), float(row[column])) for row in csv.DictReader(file)]


def losses(intervals: Path, validations: Path) -> View:
    """Return the loss of training and validation over updates, from the two tables that training writes."""
    both = {"training": series(intervals, "nll"), "validation": series(validations, "valid_loss")}
    return chart([Panel("Cross-entropy, nats per subword", "update", both)], "Training", "loss")


def curves(intervals: Path, validations: Path) -> View:
    """Return perplexity, learning rate, speed and the loss that is minimised over updates."""
    measured = series(validations, "valid_ppl")
    # Large first values would flatten the curve; a weak model's are all large.
    largest = max(LARGEST_PERPLEXITY, 2 * measured[-1][1]) if measured else 0.0
    panels = [
        Panel(
            "Perplexity per subword of the validation set",
            "update",
            {"": [(x, y) for x, y in measured if y < largest]},
        ),
        Panel(
            "Cross-entropy of training, nats per subword",
            "update",
            {
                "with label smoothing, which is minimised": series(intervals, "loss"),
                "without": series(intervals, "nll"),
            },
        ),
        Panel("Learning rate", "update", {"": series(intervals, "learning_rate")}),
        Panel("Target tokens per second", "update", {"": series(intervals, "tokens_per_second")}),
    ]
    return chart(panels, "Training", "training")


def against_cost(run: RunSettings, metrics: Mapping[str, Any]) -> View:
    """Return Table 2 as a picture: BLEU over training cost in FLOPs, with this run in it."""
    table = rows.table()
    published = {entry.name: entry.on(run.pair) for entry in table.literature}
    published |= {f"Transformer ({name})": row.paper.table2.get(run.pair) for name, row in table.rows.items()}
    points: dict[str, Points] = {
        name: [(result.flops, result.bleu)] for name, result in published.items() if result and result.flops
    }
    points[OWN] = [(metrics["train_flops_paper"], metrics["bleu_paper_way"])]
    panel = Panel("BLEU, the paper's way", "training FLOPs, the paper's way", points, scatter=True)
    return chart([panel], f"Table 2, {run.pair}: newstest2014; this run: {metrics['bleu_set']}", "cost")
