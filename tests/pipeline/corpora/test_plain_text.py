"""Lines counted, UTF-8 checked, segments found."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.corpora.plain_text import LineCounter, Malformed, segments


def counted(content: bytes, chunk: int) -> int:
    """The lines of `content`, fed `chunk` bytes at a time."""
    lines = LineCounter()
    for start in range(0, len(content), chunk):
        lines.feed(content[start : start + chunk])
    return lines.end()


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", 0),
        (b"\n", 1),
        (b"a", 1),
        (b"a\nb", 2),
        (b"a\nb\n", 2),
        (b"a\rb\r\nc\x0b\x0c\x1c\x85"[:-1] + "\u2028\u0085\n".encode(), 2),
    ],
)
def test_lines_end_at_the_newline_alone(content: bytes, lines: int) -> None:
    assert counted(content, 3) == lines


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"\xff", "line 1, byte 1"),
        (b"ab\nc\xc3\xa9d\xe9 e\n", "line 2, byte 5"),
        (b"ab\n\nxyz\xe2\x82", "line 3, byte 4"),
        (b"ab\n\nxyz\xe2\x82\n", "line 3, byte 4"),
        (b"a\xed\xa0\x80", "line 1, byte 2"),
    ],
)
@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_the_first_byte_that_is_not_utf8_is_named(content: bytes, place: str, chunk: int) -> None:
    with pytest.raises(Malformed, match=f"^is not UTF-8: {place}$"):
        counted(content, chunk)


@given(content=st.binary(max_size=60), chunk=st.integers(1, 9))
def test_chunks_change_nothing(content: bytes, chunk: int) -> None:
    def outcome(size: int) -> int | str:
        try:
            return counted(content, size)
        except Malformed as error:
            return str(error)

    assert outcome(chunk) == outcome(100)


def test_segments() -> None:
    content = (
        b'\xef\xbb\xbf<srcset setid="x" srclang="any">\r\n<DOC docid="d">\n<hl>\n<seg id="1">Title</seg>\n</hl>\n<p>\n'
        b'<seg id="2"> AT&amp;T &lt;b&gt; &quot;x&quot; &apos;&#233;&#x2019; R&D &amp;lt; &copy; </seg>\n'
        b'<SEG ID="3">two\r\nlines\n and  \t\ra return</SEG><seg></seg>\n<segment>none</segment></p></DOC></srcset>'
    )
    assert segments(content) == [
        "Title",
        'AT&T <b> "x" \'é\u2019 R&D &lt; &copy;',
        "two lines and \ra return",
        "",
    ]


def test_entities_of_no_character_stay() -> None:
    assert segments(b"<seg>&#xD800; &#1114112; &#x10FFFF;</seg>") == ["&#xD800; &#1114112; \U0010ffff"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no <seg>"),
        (b"<doc></doc>", "holds no <seg>"),
        (b"<doc>\n<seg id='1'>open\n</doc>", "a segment that does not end: line 2"),
        (b"<seg>a<seg>b</seg></seg>", "a segment that does not end: line 1"),
        (b"<seg>\n\xff</seg>", "is not UTF-8: line 2, byte 1"),
    ],
)
def test_what_is_no_sgm(content: bytes, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        segments(content)


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\t"), max_size=20), min_size=1)
)
def test_every_segment_comes_back(rows: list[str]) -> None:
    rows = [re.sub(" +", " ", row).strip(" ") for row in rows]
    content = "".join(f'<seg id="{n}">{escape(row)}</seg>\n' for n, row in enumerate(rows))
    assert segments(f"<refset>\n{content}</refset>".encode()) == rows


@settings(max_examples=200)
@given(st.lists(st.sampled_from(["<seg", ">", "</seg>", " ", "<", "&#", ";", "x", "\n", "&amp", "<seg id='1'>"])))
def test_fuzzed_sgm_is_read_or_told(pieces: list[str]) -> None:
    try:
        found = segments("".join(pieces).encode())
    except Malformed:
        return
    assert all("\n" not in row for row in found)


GOOD = '<refset>\n<seg id="1">Grüße &amp; &#x2019;s</seg>\n<seg id="2">zwei</seg>\n</refset>\n'.encode()


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, len(GOOD)), st.integers(0, 4), st.binary(max_size=4)), max_size=8))
def test_mutated_sgm_is_read_or_told(changes: list[tuple[int, int, bytes]]) -> None:
    content = bytearray(GOOD)
    for at, length, other in changes:
        content[at : at + length] = other
    found, message = [], ""
    try:
        found = segments(bytes(content))
    except Malformed as error:
        message = str(error)
    assert bool(found) != bool(message)
    assert "\n" not in message
    assert all("\n" not in row for row in found)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("piece", [b"<seg ", b"<seg>", b"</seg ", b"</seg", b"&#", b"<seg\t\t", b"<"])
def test_hostile_sgm_takes_linear_time(piece: bytes) -> None:
    with pytest.raises(Malformed):
        segments(piece * 500_000)
    assert segments(piece.replace(b"<", b"(") * 500_000 + b"<seg>a</seg>") == ["a"]
