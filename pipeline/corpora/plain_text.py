"""Read plain text from untrusted bytes: check UTF-8, count lines, turn .sgm files into one line a segment."""

from __future__ import annotations

import codecs
import re

CHUNK = 1 << 20


class Malformed(ValueError):
    """An archive or a text is invalid. The message is one clause without the file's name."""


_ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_ENTITY = re.compile(r"&(amp|lt|gt|quot|apos|#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6});")


def _character(match: re.Match[str]) -> str:
    """Return the character of an entity; an entity of no character stays unchanged."""
    name = match[1]
    if name in _ENTITIES:
        return _ENTITIES[name]
    code = int(name.lstrip("#xX"), 16 if name[1] in "xX" else 10)
    return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else match[0]


def segments(content: bytes) -> list[str]:
    """Return the segments of an NIST/WMT .sgm file (srcset or refset) in order, each one line.

    Entities are decoded once. Line breaks and runs of blanks inside a segment become one space, and blanks around it
    are removed, as in the plain files whose md5s are in the catalogs. Takes linear time and accepts invalid XML, which
    these files usually are. Raises Malformed without a segment, for one that does not end, and for invalid UTF-8.
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
    """Count the lines of a text that arrives in chunks, and check that it is UTF-8. Lines end at \\n only."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._ended = 0
        self._in_line = 0

    def feed(self, chunk: bytes, final: bool = False) -> None:
        """Raise Malformed, with line and byte (both from 1), at the first byte that is not UTF-8."""
        try:
            self._decoder.decode(chunk, final)
        except UnicodeDecodeError as error:
            # The decoder puts the start of a character that the previous chunk cut before this chunk.
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
        """Return the number of lines, one without \\n at the end included. Raise Malformed for a cut character."""
        self.feed(b"", final=True)
        return self._ended + (self._in_line > 0)
