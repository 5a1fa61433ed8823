"""Reports as Markdown: text is displayed unchanged, whatever signs it has. `make pages`: what a static host needs."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt  # It comes with rich.
from markdown_it.token import Token

from pipeline.report import page
from pipeline.report.page import Bullets, Figure, Heading, Paragraph, Table

READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
BLOCKS = {
    *("heading_open", "heading_close", "paragraph_open", "paragraph_close", "inline"),
    *("bullet_list_open", "bullet_list_close", "list_item_open", "list_item_close"),
    *(f"{part}_{end}" for part in ("table", "thead", "tbody", "tr", "th", "td") for end in ("open", "close")),
}
"""What a report is made of."""


def read(markdown: str) -> list[Token]:
    tokens = READER.parse(markdown)
    assert {token.type for token in tokens} <= BLOCKS
    return [token for token in tokens if token.type == "inline"]


def texts(tokens: list[Token], allowed: set[str]) -> Iterator[str]:
    """The text of every line or cell, which holds nothing but text and what is `allowed`."""
    for token in tokens:
        children = token.children or []
        assert {child.type for child in children} <= {"text", *allowed}
        yield " ".join("".join(child.content for child in children).split())


SIGNS = st.sampled_from([*"\\`*_{}[]<>()#+-.!|~&:@/=\"'$^ \t\n\r\u00a00123abw", "http://", "&lt;", "www."])
TEXT = st.lists(SIGNS, max_size=12).map("".join) | st.text(st.characters(codec="utf-8", exclude_characters="\0"))


@given(TEXT)
@example("[click](http://a.b) ![i](http://a.b/i.svg) `code` ``` ~~struck~~ &lt;b&gt; &#42; <b> *a* __b__ a|b \\| \\")
@example("- a")
@example("1. a")
@example("12) a")
@example("+")
@example("---")
@example("    code")
@example("> quoted")
@example("# heading #")
@example("[x]: http://example.com")
@example("| a |")
def test_no_text_becomes_markup(text: str) -> None:
    said = " ".join(text.split())
    markdown = page.markdown([Heading(text), Paragraph(text), Bullets([text, text])], "figures")
    # An empty text makes an empty block.
    assert list(filter(None, texts(read(markdown), set()))) == ([said] * 4 if said else [])
    table = page.markdown([Table((text, "b"), [(text, "c"), (text, text)], frozenset([1]))], "figures")
    assert list(texts(read(table), {"strong_open", "strong_close"})) == [said, "b", said, "c", said, said]
    [picture] = read(page.markdown([Figure(b"", text, "name")], "figures"))
    [image] = picture.children or []
    assert (image.type, image.attrs["src"]) == ("image", "figures/name.svg")
    assert list(texts([image], set())) == [said]


@pytest.mark.parametrize("address", ["http://example.com", "https://example.com/a", "www.example.com", "a@example.com"])
def test_addresses_are_no_links_on_github_either(address: str) -> None:
    # GitHub looks for these three in what is left of a text when escaped signs have been taken out of it.
    markdown = page.markdown([Paragraph(f"See {address}.")], "figures")
    assert not any(sign in markdown for sign in (" http://", "https://", "www.", "a@"))
    assert list(texts(read(markdown), set())) == [f"See {address}."]


def test_make_pages_puts_the_page_and_the_file_beside_it_into_a_folder(tmp_path: Path) -> None:
    shutil.copyfile(Path(__file__).parents[3] / "Makefile", tmp_path / "Makefile")
    for text in ("first", "second"):
        shutil.rmtree(tmp_path / "results", ignore_errors=True)
        (tmp_path / "results/figures").mkdir(parents=True)
        for name in ("report.html", f"figures/{text}.js"):
            (tmp_path / "results" / name).write_text(text)
            (tmp_path / "results" / name).chmod(0o444)  # DVC protects what it keeps.
        subprocess.run(["make", "--silent", "pages"], cwd=tmp_path, check=True)
        assert (tmp_path / "pages/index.html").read_text() == text
        assert [path.name for path in (tmp_path / "pages/figures").iterdir()] == [f"{text}.js"]
