"""The report's charts: measurements over updates, and Table 2 as BLEU over training cost.

Each is a view of the page, with a picture for Markdown and for pages without JavaScript.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.config import rows
from pipeline.config.settings import RunSettings
from pipeline.report.page import Figure, View

SIZE = (9.0, 3.2)
"""Inches."""
MARKERS = "osD^vP*X<>hp"
"""Markers of the points of a picture, which its legend names."""
LARGEST_PERPLEXITY = 200.0
"""Larger ones, of the first updates, would press the rest of the curve flat."""

Points = Sequence[tuple[float, float]]


class Panel(NamedTuple):
    """One plot of a figure: named series of points."""

    title: str
    x: str
    series: Mapping[str, Points]
    scatter: bool = False
    """Draw single points with a legend over a logarithmic x axis, instead of lines over a linear one."""

    def finite(self) -> dict[str, Points]:
        """Return the series without points that are not finite."""
        return {name: [at for at in points if all(map(math.isfinite, at))] for name, points in self.series.items()}


def chart(panels: Sequence[Panel], caption: str, name: str) -> View:
    """Return the panels as a view of the page."""
    content = [
        {**panel._asdict(), "series": [{"name": name, "points": points} for name, points in panel.finite().items()]}
        for panel in panels
    ]
    return View("chart", name, {"panels": content}, fallback=[draw(panels, caption, name)])


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
            for number, (label, points) in enumerate(panel.finite().items()):
                marker = MARKERS[number % len(MARKERS)] if panel.scatter else "-"
                axes.plot(*zip(*points, strict=True) if points else ([], []), marker, label=label)
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
    perplexities = series(validations, "valid_ppl")
    # Large first values would flatten the curve; a weak model's are all large.
    largest = max(LARGEST_PERPLEXITY, 2 * perplexities[-1][1]) if perplexities else 0.0
    shown = {"": [(update, perplexity) for update, perplexity in perplexities if perplexity < largest]}
    minimised, plain = series(intervals, "loss"), series(intervals, "nll")
    losses = {"with label smoothing, which is minimised": minimised, "without": plain}
    panels = [
        Panel("Perplexity per subword of the validation set", "update", shown),
        Panel("Cross-entropy of training, nats per subword", "update", losses),
        Panel("Learning rate", "update", {"": series(intervals, "learning_rate")}),
        Panel("Target tokens per second", "update", {"": series(intervals, "tokens_per_second")}),
    ]
    return chart(panels, "Training", "training")


def against_cost(run: RunSettings, metrics: Mapping[str, Any]) -> View:
    """Return Table 2 as a picture: BLEU over training cost in FLOPs, with this run in it."""
    table = rows.table()
    published = {entry.name: entry.results.get(run.pair) for entry in table.table2_systems}
    published |= {f"Transformer ({name})": row.paper.table2.get(run.pair) for name, row in table.rows.items()}
    points: dict[str, Points] = {
        name: [(result.flops, result.bleu)] for name, result in published.items() if result and result.flops
    }
    points["this run"] = [(metrics["train_flops_paper"], metrics["bleu_paper_way"])]
    panel = Panel("BLEU, the paper's way", "training FLOPs, the paper's way", points, scatter=True)
    return chart([panel], f"Table 2, {run.pair}: newstest2014; this run: {metrics['bleu_set']}", "cost")
