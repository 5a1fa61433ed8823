r"""Parallel text: lines that end at \n alone, sides that are paired strictly, filters that say why they drop a pair.

Every other character inside a line is text, \r (news-commentary-v9 holds it), U+2028, U+0085 and NUL included; the
tokenizer decides what becomes of it (nmt/text/moses.py). A byte order mark at the start of a line is left out, where
files were joined.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, Literal
from unicodedata import is_normalized, normalize

from nmt.errors import InputError, tell
from nmt.text.scripts import tokens
from nmt.text.settings import FilterSettings

Reason = Literal["empty", "too_short", "too_long", "ratio", "identical"]
REASONS: tuple[Reason, ...] = ("empty", "too_short", "too_long", "ratio", "identical")

_BLANK = re.compile("[\\s\x00-\x1f\x7f-\x9f\xad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]*")
_LINES = 8192  # lines of a block where the caller gives no number
_PACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"PK\x03\x04")  # how files of gzip, bzip2, xz and zip begin


def is_blank(line: str) -> bool:
    """Return whether a line has only spaces, controls and characters without a width, which no model has seen."""
    return _BLANK.fullmatch(line) is not None


def decode(content: bytes, name: Path | str, first: int = 0, offset: int = 0) -> list[str]:
    r"""Return the lines of UTF-8 text without their \n.

    `first` is the number of lines before it in the file `name`, `offset` the number of bytes. Raises InputError with
    name, line and byte if the text is not UTF-8.
    """
    try:
        text = content.decode("utf-8").removesuffix("\n").removeprefix("\ufeff")
        return text.replace("\n\ufeff", "\n").split("\n")
    except UnicodeDecodeError as error:
        if not offset and content.startswith(_PACKED):
            raise InputError(f"{name} is compressed: unpack it first") from error
        line = first + content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{name}, line {line}: the byte {content[error.start]:#04x} at offset {offset + error.start} is not valid "
            f"UTF-8 ({error.reason}): convert the text to UTF-8"
        ) from error


@dataclass(frozen=True)
class Block:
    """Consecutive whole lines of a file, as bytes."""

    path: Path
    first: int  # the number of the first line, from 0
    offset: int  # the offset of the first line in the file, in bytes
    content: bytes

    def __len__(self) -> int:
        """Return the number of lines; the last one of a file may lack its \\n."""
        return self.content.count(b"\n") + (not self.content.endswith(b"\n"))

    def __reduce__(self) -> tuple[Callable[..., Block], tuple[Any, ...]]:
        """Pickle the block without its text: another process reads it from the file."""
        return _read_block, (self.path, self.path.absolute(), self.first, self.offset, len(self.content))

    def lines(self) -> list[str]:
        """Return the lines without their \\n; raise InputError if they are not UTF-8."""
        return decode(self.content, self.path, self.first, self.offset)


def _read_block(name: Path, path: Path, first: int, offset: int, size: int) -> Block:
    """Return the block of `size` bytes at `offset` of the file at `path`, which errors call `name`."""
    with path.open("rb") as file:
        file.seek(offset)
        return Block(name, first, offset, file.read(size))


def read_blocks(path: Path, lines: int) -> Iterator[Block]:
    """Yield a file in blocks of `lines` lines; the last one may be shorter."""
    with path.open("rb") as file:
        first = offset = 0
        while content := b"".join(islice(file, lines)):
            yield Block(path, first, offset, content)
            first += lines
            offset += len(content)


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file without their \\n; raise InputError if they are not UTF-8."""
    for block in read_blocks(path, _LINES):
        yield from block.lines()


def composed(lines: Iterable[str], name: object) -> Iterator[str]:
    """Yield the lines; warn once on standard error where letters and their accents are characters of their own."""
    warned = False
    for number, line in enumerate(lines, start=1):
        # Some single characters are not NFC either, as the sign for ohm: these are not torn.
        if not warned and not is_normalized("NFC", line) and len(normalize("NFC", line)) < len(line):
            tell(f"warning: {name}, line {number}: not composed (Unicode's NFC): words are torn")
            warned = True
        yield line


def read_stream(stream: Iterable[bytes], name: str) -> Iterator[str]:
    """Yield the lines of a byte stream as soon as each is read; raise InputError if one is not UTF-8."""
    offset = 0
    for number, line in enumerate(stream):
        yield decode(line, name, number, offset)[0]
        offset += len(line)


def read_parallel_blocks(source: Path, target: Path, pairs: int) -> Iterator[tuple[Block, Block]]:
    """Yield both sides of a parallel text in blocks of `pairs` lines; the last ones may be shorter.

    Raises InputError if the sides have different numbers of lines, or none.
    """
    source_lines = target_lines = 0
    for source_block, target_block in zip_longest(read_blocks(source, pairs), read_blocks(target, pairs)):
        source_lines += len(source_block) if source_block else 0
        target_lines += len(target_block) if target_block else 0
        # Only the last block of a file is short, so numbers that differ once differ until the end.
        if source_lines == target_lines:
            yield source_block, target_block
    if source_lines != target_lines:
        raise InputError(
            f"{source} has {source_lines:,} lines and {target} has {target_lines:,}: both files must have the "
            "same number of lines"
        )
    if not source_lines:
        raise InputError(f"{source} and {target} are empty: give a corpus with at least one pair")


def parallel(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a parallel text.

    Raises InputError if the text is not UTF-8, or the sides have different numbers of lines, or none.
    """
    for source_block, target_block in read_parallel_blocks(source, target, _LINES):
        yield from zip(source_block.lines(), target_block.lines(), strict=True)


def drop_reason(
    source: str, target: str, settings: FilterSettings, languages: tuple[str, str] = ("", "")
) -> Reason | None:
    """Return the first of `REASONS` to leave a tokenised pair out of training, or None.

    Spaces separate tokens; where a language writes none between words, each character counts as one.
    """
    shorter, longer = sorted(map(len, map(tokens, (source, target), languages)))
    if is_blank(source) or is_blank(target):
        return "empty"
    if shorter < settings.min_tokens:
        return "too_short"
    if longer > settings.max_tokens:
        return "too_long"
    if settings.max_ratio is not None and longer > settings.max_ratio * shorter:
        return "ratio"
    if settings.drop_identical and source == target:
        return "identical"
    return None
