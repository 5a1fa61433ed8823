"""The report's charts, what a training wrote, attention: views, with pictures or tables where no JavaScript is."""

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nmt.task import task_of
from nmt.text.parallel_text import parallel
from pipeline.config.paths import read_table
from pipeline.report.page import Figure, Table, View

SIZE = (4.5, 3.0)  # inches of a panel; one that stands alone has twice the width
ATTENTION = {"encoder": "source to source", "decoder": "target to target", "cross": "target to source"}
"""What attends to what, in the order of the weights in the view's blob."""

Points = Sequence[tuple[float, float]]


class Panel(NamedTuple):
    """One plot of a figure: named series of points."""

    title: str
    x: str
    series: Mapping[str, Points]
    logarithmic: bool = False  # draw lines over a logarithmic y axis


def chart(panels: Sequence[Panel], caption: str, name: str) -> View:
    content = [
        {**panel._asdict(), "series": [{"name": name, "points": points} for name, points in panel.series.items()]}
        for panel in panels
    ]
    return View("chart", name, {"panels": content}, fallback=[draw(panels, caption, name)])


def draw(panels: Sequence[Panel], caption: str, name: str) -> Figure:
    """Return the panels, two in a line, as SVG; equal panels give equal bytes."""
    # Not pyplot: it looks for a screen. Matplotlib takes half a second to import.
    import matplotlib
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import LogFormatter

    lines = math.ceil(len(panels) / 2)
    # Without a salt, the ids inside an SVG are random.
    with matplotlib.rc_context({"svg.hashsalt": "report", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3}):
        canvas = Canvas(figsize=(2 * SIZE[0], lines * SIZE[1]), layout="constrained")
        for axes, panel in zip(canvas.subplots(lines, min(2, len(panels)), squeeze=False).flat, panels, strict=True):
            axes.set(title=panel.title, xlabel=panel.x, yscale="log" if panel.logarithmic else "linear")
            for label, points in panel.series.items():
                marker = "o" if len(points) == 1 else "-"
                axes.plot(*zip(*points, strict=True) if points else ([], []), marker, label=label)
            if len(panel.series) > 1:
                axes.legend()
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter(lambda value, _: f"{value:,.4g}")
            if panel.logarithmic:
                axes.yaxis.set_minor_formatter(LogFormatter())  # plain numbers, if the axis has few powers of ten
        content = io.BytesIO()
        canvas.savefig(content, format="svg", metadata={"Date": None})
    return Figure(content.getvalue(), caption, name)


def series(path: Path, column: str) -> Points:
    """Return a column of a table that training wrote, over its updates, without infinite values and NaN."""
    return [(row["update"], row[column]) for row in read_table(path) if math.isfinite(row[column])]


def curves(intervals: Path, validations: Path, unit: str) -> View:
    """Return perplexity and loss of a target `unit`, learning rate and speed over updates."""
    losses = {
        "with label smoothing (minimised)": series(intervals, "loss"),
        "without": series(intervals, "nll"),
        "validation": series(validations, "valid_loss"),
    }
    panels = [
        Panel(f"Perplexity per {unit}, validation", "update", {"": series(validations, "valid_ppl")}, logarithmic=True),
        Panel(f"Cross-entropy, nats per {unit}", "update", losses),
        Panel("Learning rate", "update", {"": series(intervals, "learning_rate")}),
        Panel("Target tokens per second", "update", {"": series(intervals, "tokens_per_second")}),
    ]
    return chart(panels, "Training", "training")


def learning(
    records: Iterable[Mapping[str, Any]],
    losses: Points,
    sides: tuple[Path, Path],
    languages: Sequence[str],
    text: Callable[[Sequence[int], str], str],
) -> View:
    """Return the view of the records of results/validation.jsonl; without JavaScript, a table of one line's outputs.

    `sides`: the validation set; `text` returns the raw output of a source line's ids.
    """
    loss_at = dict(losses)
    validations = [record for record in records if record["update"] in loss_at]
    numbers = sorted({int(number) for record in validations for number in record["outputs"]})
    pairs = dict(enumerate(islice(parallel(*sides), max(numbers, default=-1) + 1)))
    lines = [{"line": number + 1, "source": pairs[number][0], "reference": pairs[number][1]} for number in numbers]
    steps = [
        {
            "update": record["update"],
            "loss": loss_at[record["update"]],
            "outputs": [text(record["outputs"].get(str(number), []), pairs[number][0]) for number in numbers],
        }
        for record in validations
    ]
    middle = len(numbers) // 2
    rows = [(f"{step['update']:,}", f"{step['loss']:.3f}", step["outputs"][middle]) for step in steps if numbers]
    of_line = f"output for: {lines[middle]['source']}" if lines else "output"
    title = f"Cross-entropy of the validation set, nats per {task_of(languages[1]).unit}"
    content = {"title": title, "languages": languages, "lines": lines, "steps": steps}
    return View("learning", "learning", content, fallback=[Table(("update", "validation loss", of_line), rows)])


def attention(path: Path, languages: Sequence[str], pictures: Sequence[Figure]) -> View:
    """Return the view of the arrays that the stage `attention` wrote; without JavaScript the pictures are shown."""
    pairs, weights = [], []
    with np.load(path, allow_pickle=False) as arrays:
        layers, heads = arrays["encoder.0"].shape[:2]
        count = sum(name.startswith("source.") for name in arrays)
        for number in range(count):
            source, target = (arrays[f"{side}.{number}"].tolist() for side in ("source", "target"))
            pairs.append({"source": source, "target": target})
            weights += [arrays[f"{kind}.{number}"].tobytes() for kind in ATTENTION]
    content = {"layers": layers, "heads": heads, "languages": languages, "pairs": pairs}
    return View("attention", "attention", content, b"".join(weights), fallback=pictures)
