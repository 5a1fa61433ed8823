r"""Parallel text: lines that end at \n alone, sides that are paired strictly, filters that say why they drop.

What stands inside a line is text, whatever it is: \r (news-commentary-v9 holds it), U+2028, U+0085, NUL and the
non-breaking space end no line here; the tokenizer decides what becomes of them (nmt/text/moses.py). A byte order mark
at the start of a file is a mark of the file, not text, and is left out; anywhere else it is a character like others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Literal

from nmt.config import FilterSettings, InputError

Reason = Literal["empty", "too_short", "too_long", "ratio", "identical"]
REASONS: tuple[Reason, ...] = ("empty", "too_short", "too_long", "ratio", "identical")

_BOM = b"\xef\xbb\xbf"
_LINES = 8192
"""Lines read at once where the caller does not say."""


@dataclass(frozen=True)
class Block:
    """Consecutive whole lines of a file, as bytes: what is handed to a worker."""

    path: Path
    first: int
    """The first line's number, from 0."""
    offset: int
    """The first line's place in the file, in bytes."""
    content: bytes

    def __len__(self) -> int:
        """How many lines it has; the last one of a file may lack its \\n."""
        return self.content.count(b"\n") + (not self.content.endswith(b"\n"))

    def lines(self) -> list[str]:
        """The lines without their \\n; raises InputError with file, line and byte at invalid UTF-8."""
        try:
            text = self.content.decode("utf-8")
        except UnicodeDecodeError as error:
            line = self.first + self.content.count(b"\n", 0, error.start) + 1
            raise InputError(
                f"{self.path}, line {line}: the byte {self.content[error.start]:#04x} at offset "
                f"{self.offset + error.start} is no valid UTF-8 ({error.reason}): convert the file to UTF-8"
            ) from error
        return text.removesuffix("\n").split("\n")


def read_blocks(path: Path, lines: int) -> Iterator[Block]:
    """A file in blocks of `lines` lines, the last one shorter."""
    with path.open("rb") as file:
        offset = len(_BOM) if file.read(len(_BOM)) == _BOM else 0
        file.seek(offset)
        first = 0
        while content := b"".join(islice(file, lines)):
            yield Block(path, first, offset, content)
            first += lines
            offset += len(content)


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file without their \\n; raises InputError with file, line and byte at invalid UTF-8."""
    for block in read_blocks(path, _LINES):
        yield from block.lines()


def read_parallel_blocks(source: Path, target: Path, pairs: int) -> Iterator[tuple[Block, Block]]:
    """Both sides of a parallel text in blocks of the same lines, `pairs` at a time, the last ones shorter.

    Raises InputError where the sides have different numbers of lines, or none.
    """
    source_lines = target_lines = 0
    for source_block, target_block in zip_longest(read_blocks(source, pairs), read_blocks(target, pairs)):
        source_lines += len(source_block) if source_block else 0
        target_lines += len(target_block) if target_block else 0
        if source_lines == target_lines:
            yield source_block, target_block
    # A difference shows in some block and never closes again: only the last block of a file is short.
    if source_lines != target_lines:
        raise InputError(
            f"{source} has {source_lines:,} lines and {target} has {target_lines:,}: the two sides of a parallel "
            f"text have as many lines; fetch or make them again"
        )
    if not source_lines:
        raise InputError(f"{source} and {target} are empty: give a corpus with at least one pair")


def parallel(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """The pairs of a parallel text.

    Raises InputError at invalid UTF-8, and where the sides have different numbers of lines, or none.
    """
    for source_block, target_block in read_parallel_blocks(source, target, _LINES):
        yield from zip(source_block.lines(), target_block.lines(), strict=True)


def drop_reason(source: str, target: str, settings: FilterSettings) -> Reason | None:
    """Why a tokenised pair is left out of training, or None where it is kept.

    Tokens are what spaces separate. The rules are tried in the order of `REASONS`; the first that holds is told.
    """
    shorter, longer = sorted((len(source.split()), len(target.split())))
    if shorter == 0:
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
