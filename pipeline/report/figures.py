"""The report's charts: views of the page, with a picture for Markdown and for pages without JavaScript."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pipeline.report.page import Figure, View

SIZE = (4.5, 3.0)
"""Inches of a panel; one that stands alone has twice the width."""
NEAREST = 0.08
"""A tick that is nearer to an end of its axis, in parts of the axis, makes room for the label of the end."""

Points = Sequence[tuple[float, float]]


class Panel(NamedTuple):
    """One plot of a figure: named series of points."""

    title: str
    x: str
    series: Mapping[str, Points]
    logarithmic: bool = False
    """Draw lines over a logarithmic y axis."""

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
    """Return the panels, two in a line, as SVG; equal panels give equal bytes. Infinite and NaN points are left out."""
    # Not pyplot: it looks for a screen. Matplotlib takes half a second to import.
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    lines = math.ceil(len(panels) / 2)
    # Without a salt, the ids inside an SVG are random.
    with matplotlib.rc_context({"svg.hashsalt": "report", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3}):
        canvas = Canvas(figsize=(2 * SIZE[0], lines * SIZE[1]), layout="constrained")
        for axes, panel in zip(canvas.subplots(lines, min(2, len(panels)), squeeze=False).flat, panels, strict=True):
            axes.set(title=panel.title, xlabel=panel.x, yscale="log" if panel.logarithmic else "linear")
            for label, points in panel.finite().items():
                marker = "o" if len(points) == 1 else "-"
                axes.plot(*zip(*points, strict=True) if points else ([], []), marker, label=label)
            if len(panel.series) > 1:
                axes.legend()
            points = [point for points in panel.finite().values() for point in points]
            for axis, values in zip((axes.xaxis, axes.yaxis), zip(*points, strict=True), strict=False):
                logarithmic = panel.logarithmic and axis is axes.yaxis
                axis.set_ticks(_with_ends(axis.get_ticklocs(), min(values), max(values), logarithmic))
                axis.set_major_formatter(lambda value, _: f"{value:,.4g}")
                axis.set_minor_formatter("")
        content = io.BytesIO()
        canvas.savefig(content, format="svg", metadata={"Date": None})
    return Figure(content.getvalue(), caption, name)


def _with_ends(ticks: Iterable[float], low: float, high: float, logarithmic: bool) -> list[float]:
    """Return both ends of an axis and the ticks between them that are not too near to an end."""
    place = math.log if logarithmic else float
    margin = NEAREST * (place(high) - place(low))
    inside = [tick for tick in ticks if low < tick < high]
    far = [tick for tick in inside if min(place(tick) - place(low), place(high) - place(tick)) > margin]
    return sorted({low, *far, high})


def series(path: Path, column: str) -> Points:
    """Return a column of a table that training wrote, over its updates."""
    with path.open(encoding="utf-8", newline="") as file:
        return [(float(row["update"]), float(row[column])) for row in csv.DictReader(file)]


def curves(intervals: Path, validations: Path) -> View:
    """Return perplexity, learning rate, speed and the loss that is minimised over updates."""
    minimised, plain, validated = (
        *(series(intervals, name) for name in ("loss", "nll")),
        series(validations, "valid_loss"),
    )
    losses = {"with label smoothing (minimised)": minimised, "without": plain, "validation": validated}
    panels = [
        Panel("Perplexity per subword, validation", "update", {"": series(validations, "valid_ppl")}, logarithmic=True),
        Panel("Cross-entropy, nats per subword", "update", losses),
        Panel("Learning rate", "update", {"": series(intervals, "learning_rate")}),
        Panel("Target tokens per second", "update", {"": series(intervals, "tokens_per_second")}),
    ]
    return chart(panels, "Training", "training")
