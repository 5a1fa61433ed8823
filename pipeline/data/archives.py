"""Plain text out of archives: .tgz, .tar and .zip, with .gz, .sgm and TED members; a .gz may be one by itself.

Members are read as streams and written under our own names: no path, link or device of an archive reaches the disk.
"""

import gzip
import io
import lzma
import posixpath
import re
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from html import unescape
from pathlib import Path
from typing import IO

from nmt.errors import InputError
from nmt.text.parallel_text import decode

BROKEN = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError)
"""What the standard library raises on broken archives."""
_ENTITY = re.compile(r"&#?\w{1,8};")
_OPENING = re.compile(r"<seg(?:\s[^<>]*)?>", re.IGNORECASE)
_CLOSING = re.compile(r"</seg\s*>", re.IGNORECASE)
_ABOUT_TALK = re.compile(rb"^.*</?(?:url|talkid|keywords|speaker|reviewer|translator|doc)\b.*\n?", re.MULTILINE)
_TITLES = re.compile(rb"</?(?:title|description)>")


def is_archive(path: Path) -> bool:
    """Return whether a file starts like a .gz or .tar, or is a .zip."""
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b" or tarfile.is_tarfile(path) or zipfile.is_zipfile(path)


def members(path: Path, names: Collection[str]) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the named files of an archive in its order; read each before requesting the next.

    Raises InputError where one is missing, and one of `BROKEN` where the archive is.
    """
    missing = set(names)
    # A tar may end with a zip, which is_zipfile takes for the whole.
    if tarfile.is_tarfile(path):
        with tarfile.open(path) as tar:
            for member in tar:
                name = posixpath.normpath(member.name)
                stream = tar.extractfile(member) if name in names and member.isreg() else None
                if stream:
                    missing.discard(name)
                    yield name, stream
            while tar.fileobj and tar.fileobj.read(1 << 20):  # gzip's checksum is at the end
                pass
    elif len(missing) == 1 and all(name.endswith(".gz") for name in names) and not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            yield missing.pop(), file
    else:
        with zipfile.ZipFile(path) as packed:
            for name in missing.intersection(packed.namelist()):
                missing.discard(name)
                with packed.open(name) as stream:
                    yield name, stream
    if missing:
        raise InputError(f"{path} has no file {min(missing)!r}: correct the catalog, or remove the archive")


def plain(stream: IO[bytes], name: str) -> IO[bytes]:
    """Return the plain text of a member or file called `name`.

    `.gz` is unpacked; `.sgm` and `.xml` (WMT's and IWSLT's test sets) are one line a segment; of IWSLT's
    `train.tags.*`, what describes a talk is left out but for its title and description, as by fairseq.
    """
    if name.endswith(".gz"):
        stream, name = gzip.GzipFile(fileobj=stream), name.removesuffix(".gz")  # type: ignore[assignment] # it reads as one
    if name.endswith((".sgm", ".sgml", ".xml")):
        return io.BytesIO("".join(f"{segment}\n" for segment in segments(stream.read(), name)).encode())
    if posixpath.basename(name).startswith("train.tags."):
        return io.BytesIO(_TITLES.sub(b"", _ABOUT_TALK.sub(b"", stream.read())))
    return stream


def segments(content: bytes, name: str) -> list[str]:
    """Return the segments of the NIST/WMT .sgm file (srcset or refset) `name` in order, each one line.

    Entities are decoded once. Line breaks and runs of blanks inside a segment become one space, and blanks around it
    are removed, as in the plain files whose md5s are in the catalogs. Accepts invalid XML, which these files usually
    are. Raises InputError without a segment, for one that does not end, and for invalid UTF-8.
    """
    text = "\n".join(decode(content, name))
    texts: list[str] = []
    for piece in _OPENING.split(text)[1:]:
        inside, *end = _CLOSING.split(piece, maxsplit=1)
        if not end:
            raise InputError(f"{name} is cut: segment {len(texts) + 1:,} does not end")
        decoded = _ENTITY.sub(lambda match: unescape(match[0]), inside)
        texts.append(re.sub(r"(?:[ \t\n]|\r\n)+", " ", decoded).strip(" \r"))
    if not texts:
        raise InputError(f"{name} holds no <seg>")
    return texts
