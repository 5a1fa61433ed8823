"""The blocks of a report, and their text as Markdown or as one self-contained HTML page."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


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
    """Rows of cells under a header; marked rows are highlighted."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Figure:
    """A picture; `name` is the name of its SVG file in the folder of figures."""

    svg: bytes
    caption: str
    name: str


Block = Heading | Paragraph | Bullets | Table | Figure

_MARKDOWN_SIGN = re.compile(r"[\\`*_\[\]<&~!#|@]|:(?=//)|(?<=www)\.", re.IGNORECASE)
"""Signs with a meaning inside a line of Markdown. GitHub also makes links of bare addresses."""
_LIST_MARKER = re.compile(r"^([0-9]*)([-+>.)])")
"""The start of a line that Markdown reads as a list, a rule or a quotation."""


def _escape(value: Any) -> Any:
    """Return text that Markdown shows as it is, on one line; `Markup` is not escaped again."""
    if isinstance(value, Markup):
        return value
    return _MARKDOWN_SIGN.sub(r"\\\g<0>", str(value).strip().replace("\r", " ").replace("\n", " "))


def _line(text: str) -> Markup:
    """Return escaped text for the start of a line, where list markers need an escape too."""
    return Markup(_LIST_MARKER.sub(r"\1\\\2", _escape(text)))  # noqa: S704 - escaped for Markdown


@cache
def _environment() -> Environment:
    """Return jinja's environment for HTML, which escapes every value; undefined names are errors."""
    environment = Environment(
        loader=PackageLoader("pipeline.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["kind"] = lambda block: type(block).__name__
    environment.filters["base64"] = lambda content: base64.b64encode(content).decode("ascii")
    environment.filters["line"] = _line
    return environment


def html(blocks: Sequence[Block]) -> str:
    """Return the report as one HTML file that needs no other file. Its title is the first heading."""
    title = next((block.text for block in blocks if isinstance(block, Heading)), "Report")
    return _environment().get_template("report.html.j2").render(blocks=blocks, title=title)


def markdown(blocks: Sequence[Block], figures: str) -> str:
    """Return the report as Markdown; its pictures are links to SVG files in the folder `figures`."""
    environment = _environment().overlay(autoescape=False, finalize=_escape)
    return environment.get_template("report.md.j2").render(blocks=blocks, figures=figures)


def sentences(template: str, **values: Any) -> list[str]:
    """Return the lines of a template of plain text, which the page escapes later."""
    environment = _environment().overlay(autoescape=False)
    return environment.get_template(f"{template}.txt.j2").render(values).splitlines()
