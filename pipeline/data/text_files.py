"""Parallel text in the files that users have: two plain or .sgm ones, a TSV, or a TMX; each may be packed."""

import bz2
import lzma
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any, NamedTuple

from nmt.errors import InputError
from pipeline.data.archives import BROKEN, plain

Files = tuple[Path, ...]  # a TSV or a TMX, or the plain files of both sides
LONGEST = 1_000_000  # characters of a line; a longer one is a file without line breaks
PACKED = (".bz2", ".gz", ".sgm", ".sgml", ".xml", ".xz", ".zip")
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_CODES = ("{*}bpt", "{*}ept", "{*}ph", "{*}it", "{*}ut")  # a TMX's elements of another program's markup
Pair = tuple[str, str]


class Bad(NamedTuple):
    """A line that is no pair of text."""

    reason: str
    what: str  # the end of a sentence that begins with file and line
    side: int = 0  # 1 for the target's


def is_packed(path: Path) -> bool:
    return path.suffix.lower() in PACKED


def unpacked(path: Path) -> Path:
    """Return a path without a packer's ending."""
    return path.with_suffix("") if is_packed(path) else path


def holds_both(path: Path) -> bool:
    """Return whether a file has both sides of a parallel text, by its name."""
    return is_tmx(path) or unpacked(path).suffix.lower() == ".tsv"


def is_tmx(path: Path) -> bool:
    return unpacked(path).suffix.lower() == ".tmx"


def has_crlf(path: Path) -> bool:
    r"""Return whether a line of a plain file ends in \r\n: `pairs` leaves the \r at their ends out."""
    return any(line.endswith(b"\r\n") for line in _lines(path))


def pairs(files: Files, languages: tuple[str, str]) -> Iterator[Pair | Bad]:
    """Yield a parallel text; memory does not grow with it.

    Raises InputError where a file is broken or no TMX, and where the sides have different numbers of lines, or none.
    """
    if is_tmx(files[0]):
        yield from _units(files[0], languages)
        return
    counts = [0] * len(files)
    for row in zip_longest(*map(_lines, files), fillvalue=b""):
        counts = [count + bool(line) for count, line in zip(counts, row, strict=True)]
        if len(files) == 2:
            yield _pair(row)
        elif (columns := row[0].count(b"\t") + 1) == 2:
            yield _pair(row[0].rstrip(b"\r\n").split(b"\t"))
        else:
            yield Bad("not two columns", f"has {columns} columns, not two")
    if counts[0] != counts[-1]:
        raise InputError(
            f"{files[0]} has {counts[0]:,} lines and {files[1]} has {counts[1]:,}: both must have as many lines"
        )
    if not counts[0]:
        raise InputError(f"{' and '.join(map(str, files))} are empty: give a text with at least one pair")


def _pair(lines: Sequence[bytes]) -> Pair | Bad:
    texts = []
    for side, line in enumerate(lines):
        if len(line) > 4 * LONGEST:  # `_lines` may have cut it inside a character.
            return Bad("over-long", f"has more than {LONGEST:,} characters", side)
        try:
            text = line.decode().removesuffix("\n").removesuffix("\r").removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            return Bad("not UTF-8", f"has the byte {line[error.start]:#04x}, which is not valid UTF-8", side)
        if "\0" in text:
            return Bad("not UTF-8", "holds a NUL byte, as UTF-16 does", side)
        if len(text) > LONGEST:
            return Bad("over-long", f"has {len(text):,} characters", side)
        texts.append(text)
    return texts[0], texts[1]


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, unpacked; raise InputError where it is broken."""
    openers: dict[str, Any] = {".bz2": bz2.open, ".xz": lzma.open, ".zip": _only_file}
    try:
        with openers.get(path.suffix.lower(), open)(path, "rb") as stream:
            inside = path.stem if path.suffix.lower() in openers else path.name
            yield plain(stream, inside.lower())
    except (*BROKEN, RuntimeError, OSError) as error:
        if getattr(error, "errno", None) is not None:  # of the disk; bz2 raises one without a number
            raise
        raise InputError(f"{path} is broken ({error}): get it again") from error


def _only_file(path: Path, _mode: str) -> IO[bytes]:
    packed = zipfile.ZipFile(path)
    names = [name for name in packed.namelist() if not name.endswith("/") and not name.startswith("__MACOSX/")]
    if len(names) != 1:
        raise InputError(f"{path} holds {len(names)} files: give one that holds a single text")
    return plain(packed.open(names[0]), names[0].lower())


def _lines(path: Path) -> Iterator[bytes]:
    with _opened(path) as stream:
        # The rest of an over-long line, which may be the whole file, is not kept.
        while line := stream.readline(5 * LONGEST):
            rest = line
            while rest and not rest.endswith(b"\n"):
                rest = stream.readline(5 * LONGEST)
            yield line


def _units(path: Path, languages: tuple[str, str]) -> Iterator[Pair | Bad]:
    """Yield the translation units of a TMX that has both languages; markup inside segments is left out.

    Entities that the file declares are not expanded, and nothing else is read.
    """
    from lxml import etree

    codes = [language.replace("_", "-").lower() for language in languages]
    known: set[str] = set()
    units = 0
    with _opened(path) as stream:
        try:
            for _, unit in etree.iterparse(stream, tag="{*}tu", resolve_entities=False, remove_comments=True):
                texts: dict[str, str] = {}
                for version in unit.iterchildren("{*}tuv"):
                    tag = (version.get(_LANGUAGE) or version.get("lang") or "").replace("_", "-").lower()
                    known.add(tag)
                    etree.strip_elements(version, *_CODES, with_tail=False)
                    text = " ".join("".join(part for seg in version.iter("{*}seg") for part in seg.itertext()).split())
                    if fitting := [code for code in codes if tag == code or tag.startswith(f"{code}-")]:
                        texts.setdefault(max(fitting, key=len), text)  # of sr and sr-latn the latter
                torn = next(unit.iter(etree.Entity), None)
                while unit.getprevious() is not None:  # Free what was read.
                    del unit.getparent()[0]
                unit.clear()
                if torn is not None:
                    yield Bad("entity", f"has the entity {torn.text}, which is not expanded")
                elif len(texts) == 2:
                    units += 1
                    yield _pair([texts[code].encode() for code in codes])
                else:
                    yield Bad("one-sided", f"has no {' or '.join(code for code in codes if code not in texts)}")
        except etree.XMLSyntaxError as error:
            raise InputError(f"{path} is no TMX that can be read ({error}): export it again") from error
    if not units:
        raise InputError(f"{path} has no unit in both {' and '.join(codes)}; its languages are {sorted(known)}")
