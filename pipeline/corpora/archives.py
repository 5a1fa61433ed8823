"""Stream plain text from untrusted archives: .tgz, .tar and .zip, with .gz and .sgm members."""

from __future__ import annotations

import errno
import gzip
import posixpath
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

from pipeline.corpora.plain_text import CHUNK, Malformed, segments

MAX_RATIO = 100
"""The largest accepted ratio of unpacked to packed bytes. Text has 3 to 10; more is an attempt to fill the disk."""
ALLOWANCE = 64 << 20  # bytes that any archive may unpack to: small files of one repeated line are no attack
MAX_MEMBERS = 100_000
_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"
_MAX_HEADER = 1 << 14  # bytes of one tar header. Python's parsing of extended headers takes quadratic time
_MAX_SGM = 256 << 20
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, OverflowError)
"""Errors of the standard library on broken archives, beside RuntimeError and OSError."""


class Reader(Protocol):
    """A source of bytes."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; none at the end."""


@contextmanager
def _malformed_if_broken() -> Iterator[None]:
    """Turn the errors that the standard library raises on broken archives into Malformed."""
    try:
        yield
    except Malformed:
        raise
    except (*_BROKEN, RuntimeError, OSError) as error:
        # EINVAL: the archive points before its own start. Errors without a number are gzip's, others the system's.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise Malformed(f"is broken ({' '.join(str(error).split()) or type(error).__name__})") from error


class _Forward:
    """A tar stream that is read once, forward, and at most `limit` bytes.

    tarfile alone follows negative sizes backward without end, and reads headers of any size into memory.
    """

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, limit: int) -> None:
        self._stream = stream
        self._limit = limit

    def tell(self) -> int:
        return self._stream.tell()

    def seek(self, position: int) -> int:
        if position < self.tell():
            raise Malformed("is broken (a header points backward)")
        self._bound(position)
        return self._stream.seek(position)

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _MAX_HEADER:
            raise Malformed(f"is broken (a header of {size:,} bytes)")
        return self.take(size)

    def take(self, size: int) -> bytes:
        """Return `size` bytes, fewer at the end of the stream."""
        self._bound(self.tell() + size)
        return self._stream.read(size)

    def _bound(self, position: int) -> None:
        if position > self._limit:
            raise Malformed(f"unpacks to more than {self._limit:,} bytes, over {MAX_RATIO} times its size")


class Member:
    """The bytes of one member; reading raises Malformed where there are fewer than its header declares."""

    def __init__(self, name: str, size: int, read: Callable[[int], bytes]) -> None:
        self.name, self.size = name, size  # bytes in the unpacked archive; of a `.gz` member, packed bytes
        self._read, self._left = read, size

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; none at the end."""
        with _malformed_if_broken():
            chunk = self._read(min(size, self._left))
        if not chunk and min(size, self._left):
            raise Malformed(f"ends inside the member {self.name!r}")
        self._left -= len(chunk)
        return chunk


def is_archive(path: Path) -> bool:
    """Return whether a file starts like a .tgz, .tar or .zip."""
    head = _head(path)
    if head.startswith((_GZIP, _ZIP)):
        return True
    try:
        # By the header's own checksum: the oldest tars have no magic bytes.
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except _BROKEN:
        return False
    return True


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(tarfile.BLOCKSIZE)


def members(path: Path, requested: Collection[str]) -> Iterator[Member]:
    """Yield the requested members of an archive in its order; read each before requesting the next.

    The format is detected by content. Every member is checked, requested or not; nothing is written. Raises Malformed
    for a file that is no archive or broken, that has a path or link out of its folder, a device, a requested member
    twice or not as a plain file, that unpacks to over MAX_RATIO times its size, or lacks a requested member.
    """
    if not is_archive(path):
        raise Malformed("is neither .tgz nor .tar nor .zip")
    found: set[str] = set()
    walk = _zip_members if _head(path).startswith(_ZIP) else _tar_members
    for member in walk(path, requested):
        if member.name in found:
            raise Malformed(f"holds {member.name!r} twice")
        found.add(member.name)
        yield member
    if missing := [name for name in requested if name not in found]:
        raise Malformed(f"has no member {missing[0]!r}")


def _limit(packed: int) -> int:
    return max(ALLOWANCE, MAX_RATIO * packed)


def _plain_name(name: str) -> str:
    """Return a member's name without `./`; raise Malformed where it leads out of the folder of the archive."""
    if name.startswith(("/", "\\")) or re.match(r"[A-Za-z]:", name) or ".." in re.split(r"[/\\]", name):
        raise Malformed(f"holds {name!r}, a path that leads out of its folder")
    return posixpath.normpath(name)


def _tar_members(path: Path, requested: Collection[str]) -> Iterator[Member]:
    packed = _head(path).startswith(_GZIP)
    with gzip.open(path, "rb") if packed else path.open("rb") as stream:
        forward = _Forward(stream, _limit(path.stat().st_size))
        with _malformed_if_broken():
            archive = tarfile.TarFile(fileobj=forward)  # type: ignore[arg-type] # it calls only these methods
        for _ in range(MAX_MEMBERS):
            with _malformed_if_broken():
                member = archive.next()
                # Otherwise it keeps every header in memory.
                archive.members = []  # type: ignore[attr-defined] # not in the stubs
                if member is None:
                    return
                name = _plain_name(member.name)
                if member.size < 0:
                    raise Malformed(f"holds {name!r} with a negative size")
                try:
                    tarfile.data_filter(member, str(path.parent))
                except tarfile.FilterError as error:
                    special = isinstance(error, tarfile.SpecialFileError)
                    kind = "a device or pipe" if special else "a link or path that leads out"
                    raise Malformed(f"holds {name!r}, {kind}") from error
            if name in requested:
                if not member.isreg() or member.issparse():
                    raise Malformed(f"holds {name!r} as a link, a folder or a file with holes, not as a plain file")
                forward.seek(member.offset_data)
                yield Member(name, member.size, forward.take)
    raise Malformed(f"holds more than {MAX_MEMBERS:,} members")


def _zip_members(path: Path, requested: Collection[str]) -> Iterator[Member]:
    with _malformed_if_broken():
        archive = zipfile.ZipFile(path)
    with archive:
        entries = archive.infolist()
        if len(entries) > MAX_MEMBERS:
            raise Malformed(f"holds more than {MAX_MEMBERS:,} members")
        if sum(entry.file_size for entry in entries) > (limit := _limit(path.stat().st_size)):
            raise Malformed(f"unpacks to more than {limit:,} bytes, over {MAX_RATIO} times its size")
        for entry in entries:
            name = _plain_name(entry.filename)
            kind = stat.S_IFMT(entry.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise Malformed(f"holds {name!r}, a link, device or pipe")
            if name in requested:
                if entry.is_dir() or entry.flag_bits & 1:
                    raise Malformed(f"holds {name!r} as a folder or under a password, not as a plain file")
                with _malformed_if_broken():
                    stream = archive.open(entry)
                with stream:
                    yield Member(name, entry.file_size, stream.read)


def plain(reader: Reader, name: str) -> Iterator[bytes]:
    """Yield the plain text of a member or file called `name` in chunks: `.gz` unpacked, `.sgm` as lines."""
    if name.endswith(".gz"):
        chunks, name = _unpacked(reader), name.removesuffix(".gz")
    else:
        chunks = iter(lambda: reader.read(CHUNK), b"")
    if not name.endswith((".sgm", ".sgml")):
        yield from chunks
        return
    content = bytearray()
    for chunk in chunks:
        content += chunk
        if len(content) > _MAX_SGM:
            raise Malformed(f"is larger than the {_MAX_SGM:,} bytes that an .sgm file may have")
    yield from (segment.encode("utf-8") + b"\n" for segment in segments(bytes(content)))


def _unpacked(reader: Reader) -> Iterator[bytes]:
    """Yield the content of a .gz."""
    packed, position = _Counted(reader), 0
    with _malformed_if_broken(), gzip.GzipFile(fileobj=packed, mode="rb") as stream:  # type: ignore[call-overload] # read() suffices
        while chunk := stream.read(CHUNK):
            position += len(chunk)
            if position > _limit(packed.count):
                raise Malformed(f"unpacks to over {MAX_RATIO} times its size")
            yield chunk


class _Counted:
    """A reader that counts the bytes read from it."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.count = 0

    def read(self, size: int) -> bytes:
        chunk = self._reader.read(size)
        self.count += len(chunk)
        return chunk
