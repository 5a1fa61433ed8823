"""Files and folders that are whole or absent: written under a temporary name, flushed to disk, then renamed."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DAY = 86_400.0
"""Seconds without a change after which what another machine began to write counts as left behind."""


def _flush(path: Path) -> None:
    """Push what stands at `path` to the disk, so that a rename after it never outlives its content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    """Where this process writes `path`. The machine is in the name: another's processes cannot be looked up."""
    return path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.tmp")


def _is_at_work(process: int) -> bool:
    """Whether another process than this one has this number: what is there under ours is of one killed before."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # Another user's.
    return True


def _is_left(path: Path, machine: str, process: int) -> bool:
    """Whether nobody writes a temporary file or folder any more."""
    if machine == os.uname().nodename:
        return not _is_at_work(process)
    return time.time() - max(part.lstat().st_mtime for part in (path, *path.rglob("*"))) > DAY


def _sweep(path: Path) -> None:
    """Remove what processes that were killed while they wrote `path` left beside it."""
    name = re.compile(re.escape(f".{path.name}.") + r"(.+)\.([0-9]{1,9})\.(tmp|old)")
    # In this order a process' .tmp is gone before its .old takes that name.
    for left in sorted(path.parent.iterdir(), reverse=True):
        match = name.fullmatch(left.name)
        # What cannot be removed stops nothing: another process may be sweeping at the same time.
        with suppress(OSError):
            if match is None or not _is_left(left, match[1], int(match[2])):
                continue
            if match[3] == "tmp":
                _remove(left)
            elif path.exists():
                # What is called .old is whole.
                _remove(left.rename(left.with_suffix(".tmp")))
            elif match[1] == os.uname().nodename:
                os.replace(left, path)  # Killed between the two renames: this is what stood there.


def _put(temporary: Path, path: Path) -> None:
    """Rename a folder to `path`; the one that stood there, if any, is at `temporary` then."""
    # A folder cannot be renamed over a full one: the old one steps aside for the moment between.
    old = temporary.with_suffix(".old")
    try:
        if path.exists():
            os.replace(path, old)
        os.replace(temporary, path)
    finally:
        if old.exists():
            os.replace(old, temporary if path.exists() else path)


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; what was made there (a file or a folder) takes its place at the end.

    After an error, whatever stood at `path` before still stands there and the temporary one is gone. A kill leaves
    the old or the new, but for the moment between two renames when a folder replaces another: the next process that
    writes `path` on the same machine puts the old one back. It also removes what killed processes left; what those
    of other machines left goes when nothing in it has changed for a day.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    temporary = _temporary(path)
    _remove(temporary)
    try:
        yield temporary
        if temporary.is_dir():
            for child in temporary.rglob("*"):
                _flush(child)
            _flush(temporary)
            _put(temporary, path)
        else:
            _flush(temporary)
            os.replace(temporary, path)
        _flush(path.parent)
    finally:
        _remove(temporary)


def sha256_of(path: Path) -> str:
    """The sha256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
