"""Plain text from bytes that are not trusted: UTF-8 counted and checked, .sgm files as one line a segment."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

CHUNK = 1 << 20


class Malformed(ValueError):
    """An archive or a text is not what it should be. Told in one clause, without the file's name."""


_ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_ENTITY = re.compile(r"&(amp|lt|gt|quot|apos|#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6});")


def _character(match: re.Match[str]) -> str:
    """What an entity stands for; what stands for no character stays as it is."""
    name = match[1]
    if name in _ENTITIES:
        return _ENTITIES[name]
    code = int(name.lstrip("#xX"), 16 if name[1] in "xX" else 10)
    return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else match[0]


def segments(content: bytes) -> list[str]:
    """The segments of an NIST/WMT .sgm file (srcset or refset), in order, each one line.

    Entities are read once. Line breaks and runs of blanks inside a segment are one space, and blanks around it go: so
    it is in the plain files whose md5s are on record. Linear in time: the files are hardly ever valid XML, and none is
    refused for that. Raises Malformed without a segment, for one that does not end, and for bytes that are not UTF-8.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = error.start - content.rfind(b"\n", 0, error.start)
        raise Malformed(f"is not UTF-8: line {line:,}, byte {byte:,}") from error
    found: list[str] = []
    opening = re.compile(r"<seg(?:\s[^<>]*)?>", re.IGNORECASE)
    either = re.compile(r"</seg\s*>|<seg(?:\s[^<>]*)?>", re.IGNORECASE)
    position = 0
    while start := opening.search(text, position):
        end = either.search(text, start.end())
        if end is None or not end[0].startswith("</"):
            raise Malformed(f"has a segment that does not end: line {text.count(chr(10), 0, start.start()) + 1:,}")
        inside = _ENTITY.sub(_character, text[start.end() : end.start()])
        found.append(re.sub(r"(?:[ \t\n]|\r\n)+", " ", inside).strip(" \r"))
        position = end.end()
    if not found:
        raise Malformed("holds no <seg>")
    return found


class Lines:
    """Counts the lines of a text that arrives in chunks, and checks that it is UTF-8. Lines end at \\n alone."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._ended = 0
        self._in_line = 0

    def feed(self, chunk: bytes, final: bool = False) -> None:
        """Raises Malformed, with line and byte (both from 1), at the first byte that is not UTF-8."""
        try:
            self._decoder.decode(chunk, final)
        except UnicodeDecodeError as error:
            # The decoder keeps the bytes of a character that the chunk before cut: they stand in front here.
            before = error.object[: error.start]
            held = len(error.object) - len(chunk)
            line = self._ended + before.count(b"\n") + 1
            newline = before.rfind(b"\n")
            byte = error.start - newline if newline >= 0 else self._in_line - held + error.start + 1
            raise Malformed(f"is not UTF-8: line {line:,}, byte {byte:,}") from error
        self._ended += chunk.count(b"\n")
        newline = chunk.rfind(b"\n")
        self._in_line = len(chunk) - newline - 1 if newline >= 0 else self._in_line + len(chunk)

    def end(self) -> int:
        """The number of lines; a last one without \\n counts. Raises Malformed for a character that is cut."""
        self.feed(b"", final=True)
        return self._ended + (self._in_line > 0)


def count_lines(path: Path) -> int:
    """The number of lines of a plain file; raises Malformed, with line and byte, where it is not UTF-8."""
    lines = Lines()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            lines.feed(chunk)
    return lines.end()
