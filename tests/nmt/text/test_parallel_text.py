"""Lines, strict pairing and filters."""

import gzip
from pathlib import Path

import pytest
from refusals import check_refusal
from text_lines import write_lines

from nmt.text.parallel_text import drop_reason, is_blank, parallel, read_blocks, read_lines, read_parallel_blocks
from nmt.text.settings import FilterSettings

FILTERS = FilterSettings(min_tokens=2, max_tokens=5, max_ratio=2.0, drop_identical=True)


def test_lines_end_at_newline_alone(tmp_path: Path) -> None:
    lines = ["a\rb", "c\u2028d\x85e", "f\x00\x0c\x1cg", "", "h\u00a0", "i"]
    path = write_lines(tmp_path / "text", lines)
    assert list(read_lines(path)) == lines
    # The last line may lack its \\n; a byte order mark is left out at the start of a line.
    path.write_bytes("\ufeffa\n\n\ufeffb\ufeff".encode())
    assert list(read_lines(path)) == ["a", "", "b\ufeff"]
    assert [list(block.lines()) for block in read_blocks(path, 2)] == [["a", ""], ["b\ufeff"]]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_invalid_utf8_is_told_with_file_line_and_byte(tmp_path: Path, mark: bytes) -> None:
    path = tmp_path / "text"
    before = mark + "grün\n".encode() * 10
    path.write_bytes(before + b"ok \xe4h\nmore\n")
    # The same place, where the line stands in a later block.
    for lines in (read_lines(path), (block.lines() for block in read_blocks(path, 3))):
        check_refusal(rf"text, line 11: the byte 0xe4 at offset {len(before) + 3} ", list, lines)
    path.write_bytes(gzip.compress(before))
    check_refusal("text is compressed: unpack it first", list, read_lines(path))


@pytest.mark.parametrize(("source", "target"), [(3, 4), (4, 3), (8200, 3), (0, 1), (1, 0)])
def test_different_numbers_of_lines_are_refused(tmp_path: Path, source: int, target: int) -> None:
    files = write_lines(tmp_path / "x.en", ["a"] * source), write_lines(tmp_path / "x.de", ["b"] * target)
    for pairs in (parallel(*files), read_parallel_blocks(*files, 2)):
        check_refusal(rf"x\.en has {source:,} lines and .*x\.de has {target:,}:", list, pairs)


def test_empty_corpus_is_refused(tmp_path: Path) -> None:
    check_refusal("are empty", list, parallel(write_lines(tmp_path / "x.en", []), write_lines(tmp_path / "x.de", [])))


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("a b", "c d", None), ("a b", "c d e f", None), ("a b c d e", "c d e f g", None),
        ("", "c d", "empty"), ("a b", " \u00a0 ", "empty"), ("a b", "c", "too_short"),
        ("a b c d e f", "c d e", "too_long"), ("a b", "c d e f g", "ratio"), ("a b", "a b", "identical"),
        # Of several reasons, the first.
        ("", "a b c d e f", "empty"), ("a", "a b c d e f", "too_short"), ("a", "a", "too_short"),
        ("a b", "a b c d e f", "too_long"), ("a b c d e f", "a b c d e f", "too_long"),
    ],
)  # fmt: skip
def test_drop_reason(source: str, target: str, reason: str | None) -> None:
    assert drop_reason(source, target, FILTERS) == drop_reason(target, source, FILTERS) == reason
    off = FilterSettings(min_tokens=1, max_tokens=9, max_ratio=None, drop_identical=False)
    assert drop_reason(source, target, off) == (reason if reason == "empty" else None)


@pytest.mark.parametrize("character", "\u200b\ufeff\u2060\u200e\u200d\xad\x7f\u3000")
def test_a_line_of_characters_that_show_nothing_is_empty(character: str) -> None:
    line = f"{character} {character}{character}"
    assert is_blank(line)
    assert drop_reason(line, "a b", FILTERS) == drop_reason("a b", line, FILTERS) == "empty"
    assert not is_blank(f"{character}-")


def test_characters_count_where_words_have_no_spaces() -> None:
    pair = "今天天气", "Fine weather today"
    assert drop_reason(*pair, FILTERS) == "too_short"
    assert drop_reason(*pair, FILTERS, ("zh", "en")) is None
    assert drop_reason("今天天气好吗", pair[1], FILTERS, ("zho", "en")) == "too_long"
