"""The blocks of a report, and their text as Markdown or as one self-contained HTML page."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


class Heading(NamedTuple):
    """A heading; level 1 is the page's title."""

    text: str
    level: int = 2
    open: bool = False  # whether the page shows the section at first


class Paragraph(NamedTuple):
    text: str


class Bullets(NamedTuple):
    items: Sequence[str]


class Commands(NamedTuple):
    """Lines to copy into a shell."""

    lines: Sequence[str]


class Table(NamedTuple):
    """Rows of cells under a header; marked rows are highlighted. The page's first cells link to `link` + text."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: frozenset[int] = frozenset()
    link: str = ""


class Figure(NamedTuple):
    """A picture; `name` is the name of its SVG file in the folder of figures."""

    svg: bytes
    caption: str
    name: str
    only_markdown: bool = False  # leave it out of the page, whose view shows more


class Tiles(NamedTuple):
    """The numbers that a reader looks for first: label, value and a note each."""

    items: Sequence[tuple[str, str, str]]


class Bars(NamedTuple):
    """Named amounts as horizontal bars: name, amount, and the text beside the bar."""

    header: tuple[str, str]
    rows: Sequence[tuple[str, float, str]]


class View(NamedTuple):
    """A part of the page that needs JavaScript. Without it, and in Markdown, `fallback` is in its place."""

    kind: str  # the function in `static/` that builds it
    name: str  # names it within the page
    content: Mapping[str, Any]  # what the function gets, as JSON
    blob: bytes = b""  # numbers that JSON would make too large; `content` says what is where
    fallback: Sequence[Block] = ()
    beside: str = ""
    """The file beside the page that has content and blob, and is read at a click; without one the page has them."""


Plain = Heading | Paragraph | Bullets | Commands | Table | Figure  # blocks that Markdown has, too
Block = Plain | Tiles | Bars | View

SCRIPTS = (
    "page", "chart", "translations", "learning", "attention", "text", "trees", "transformer", "beam", "translate",
)  # fmt: skip
"""Modules of JavaScript in `static/`, in the order in which the page has them."""
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


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


@cache
def _environment() -> Environment:
    """Return jinja's environment for HTML, which escapes every value; undefined names are errors."""
    environment = Environment(loader=PackageLoader("pipeline.report"), autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = environment.keep_trailing_newline = True
    environment.filters |= {"base64": _base64, "line": _line, "packed": packed}
    environment.filters["kind"] = lambda block: type(block).__name__
    return environment


def packed(view: View) -> str:
    """Return a view's content and blob, compressed, in base64: no text in it can end the element that holds it.

    Before compression: the length of the JSON (4 bytes, little-endian), the JSON, the blob.
    """
    content = json.dumps(view.content, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    whole = len(content).to_bytes(4, "little") + content + view.blob
    return _base64(gzip.compress(whole, mtime=0))


def _inline(*names: str) -> tuple[Markup, str]:
    """Return the text of files in `static/`, and its source expression for the content security policy."""
    text = "\n".join((files("pipeline.report") / "static" / name).read_text(encoding="utf-8") for name in names)
    return Markup(text), f"'sha256-{_base64(hashlib.sha256(text.encode()).digest())}'"  # noqa: S704 - of this package


def html(blocks: Sequence[Block]) -> str:
    """Return the report as one HTML file that needs no other file and no network. Its title is the first heading."""
    title = next((block.text for block in blocks if isinstance(block, Heading)), "Report")
    style, style_source = _inline("page.css")
    script, script_source = _inline(*(f"{name}.js" for name in SCRIPTS))
    view_source = " 'self' file:" if any(isinstance(block, View) and block.beside for block in blocks) else ""
    sources = f"img-src data:; style-src {style_source}; script-src {script_source}{view_source}"
    policy = f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"
    head: list[Block] = []  # What stands before the first heading of level 2.
    parts: list[tuple[Heading, list[Block]]] = []
    for block in blocks:
        if isinstance(block, Heading) and block.level == 2:
            parts.append((block, []))
        else:
            (parts[-1][1] if parts else head).append(block)
    template = _environment().get_template("report.html.j2")
    return template.render(title=title, head=head, parts=parts, style=style, script=script, policy=policy)


def static_blocks(blocks: Sequence[Block]) -> list[Plain]:
    """Return the blocks as headings, text, tables and figures: a view becomes its fallback."""
    plain: list[Plain] = []
    for block in blocks:
        if isinstance(block, View):
            plain += [inner for inner in static_blocks(block.fallback) if inner not in plain]
        elif isinstance(block, Tiles):
            plain.append(Table(("", "", ""), block.items))
        elif not isinstance(block, Bars):  # which only the comparison has
            plain.append(block)
    return plain


def markdown(blocks: Sequence[Block], figures: str) -> str:
    """Return the report as Markdown; its pictures are links to SVG files in the folder `figures`."""
    blocks = static_blocks(blocks)
    environment = _environment().overlay(autoescape=False, finalize=_escape)
    return environment.get_template("report.md.j2").render(blocks=blocks, figures=figures)


def sentences(template: str, **values: Any) -> list[str]:
    """Return the lines of a template of plain text, which the page escapes later."""
    environment = _environment().overlay(autoescape=False)
    return environment.get_template(f"{template}.txt.j2").render(values).splitlines()
