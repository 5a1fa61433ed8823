"""A report as a list of blocks, written as Markdown or as one self-contained HTML page."""

from __future__ import annotations

import base64
import html
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 9.0, 3.2
"""Inches of a figure."""


@dataclass(frozen=True)
class Heading:
    """A heading; level 1 is the page's title."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    """Plain text."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """A list of sentences."""

    items: Sequence[str]


@dataclass(frozen=True)
class Table:
    """Rows of cells under a header; marked rows stand out."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Figure:
    """A picture; `name` is that of its file beside the Markdown."""

    svg: bytes
    caption: str
    name: str


Block = Heading | Paragraph | Bullets | Table | Figure


def markdown(blocks: Sequence[Block], figures: str) -> str:
    """The report as Markdown, whose pictures stand in the folder `figures`."""
    parts = []
    for block in blocks:
        match block:
            case Heading(text, level):
                parts.append(f"{'#' * level} {_plain(text)}")
            case Paragraph(text):
                parts.append(_start(_plain(text)))
            case Bullets(items):
                parts.append("\n".join(f"- {_start(_plain(item))}" for item in items))
            case Table(header, rows, marked):
                lines = [_line([_plain(cell) for cell in header]), _line(["---"] * len(header))]
                for number, row in enumerate(rows):
                    cells = [_plain(cell) for cell in row]
                    lines.append(_line([f"**{cell}**" if number in marked and cell else cell for cell in cells]))
                parts.append("\n".join(lines))
            case Figure(_, caption, name):
                parts.append(f"![{_plain(caption)}]({figures}/{name}.svg)")
    return "\n\n".join(parts) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


_SIGN = re.compile(r"[\\`*_\[\]<&~!#|@]|:(?=//)|(?<=www)\.", re.IGNORECASE)
"""What stands for more than itself inside a line. GitHub makes links of bare addresses, too."""
_MARKER = re.compile(r"^([0-9]*)([-+>.)])")
"""What makes a list, a rule or a quotation of a line that begins with it."""


def _plain(text: str) -> str:
    """Text that Markdown takes for nothing else inside a line: translations hold any sign."""
    return _SIGN.sub(r"\\\g<0>", text.strip().replace("\r", " ").replace("\n", " "))


def _start(text: str) -> str:
    """Such text where it begins a block, and what it begins with means something, too."""
    return _MARKER.sub(r"\1\\\2", text)


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222; }
table { border-collapse: collapse; margin: 1em 0; } td, th { padding: .25em .7em; border-bottom: 1px solid #ddd; }
th { text-align: left; } tr.marked { background: #eef4ff; font-weight: 600; } img { max-width: 100%; }
figcaption { color: #555; }
"""


def page(blocks: Sequence[Block]) -> str:
    """The report as one HTML file that needs no other."""
    title = next((block.text for block in blocks if isinstance(block, Heading)), "Report")
    body = "\n".join(_html(block) for block in blocks)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{html.escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _html(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{html.escape(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{html.escape(text)}</p>"
        case Bullets(items):
            return "<ul>\n" + "\n".join(f"<li>{html.escape(item)}</li>" for item in items) + "\n</ul>"
        case Table(header, rows, marked):
            lines = ["<tr>" + "".join(f"<th>{html.escape(cell)}</th>" for cell in header) + "</tr>"]
            for number, row in enumerate(rows):
                style = ' class="marked"' if number in marked else ""
                lines.append(f"<tr{style}>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>")
            return "<table>\n" + "\n".join(lines) + "\n</table>"
        case Figure(svg, caption):
            data = base64.b64encode(svg).decode("ascii")
            text = html.escape(caption)
            return (
                f'<figure><img alt="{text}" src="data:image/svg+xml;base64,{data}">'
                f"<figcaption>{text}</figcaption></figure>"
            )


Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """One plot of a figure: named series of points."""

    title: str
    x: str
    series: Mapping[str, Points]
    logarithmic: bool = False
    """Of the x axis."""
    lines: bool = True
    """Points joined; else each point alone, with its name beside it."""


def draw(panels: Sequence[Panel], caption: str, name: str) -> Figure:
    """The panels side by side as SVG; equal panels give equal bytes."""
    # Not pyplot: it looks for a screen. Matplotlib takes half a second to import.
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    # Names inside an SVG are random unless salted.
    with matplotlib.rc_context({"svg.hashsalt": "report", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3}):
        canvas = Canvas(figsize=(WIDTH, HEIGHT), layout="constrained")
        for axes, panel in zip(canvas.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            axes.set_title(panel.title)
            axes.set_xlabel(panel.x)
            if panel.logarithmic:
                axes.set_xscale("log")
            for label, points in panel.series.items():
                finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
                axes.plot(*zip(*finite, strict=True) if finite else ([], []), "-" if panel.lines else "o", label=label)
                if not panel.lines:
                    # Room for the names.
                    axes.margins(x=0.15, y=0.12)
                    for point in finite:
                        axes.annotate(label, point, textcoords="offset points", xytext=(4, 4), fontsize=7)
            if panel.lines and len(panel.series) > 1:
                axes.legend()
        content = io.BytesIO()
        canvas.savefig(content, format="svg", metadata={"Date": None})
    return Figure(content.getvalue(), caption, name)
