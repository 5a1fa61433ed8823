"""Files and folders that are whole or absent: written under a temporary name, flushed to disk, then renamed."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; what was made there (a file or a folder) takes its place at the end.

    After an error, whatever stood at `path` before still stands there and the temporary one is gone.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    _remove(temporary)
    try:
        yield temporary
        if temporary.is_dir():
            for child in temporary.rglob("*"):
                _flush(child)
            _flush(temporary)
            if path.exists():
                # A folder cannot be renamed over a full one: the old one steps aside for the moment between.
                old = path.with_name(f".{path.name}.{os.getpid()}.old")
                os.replace(path, old)
                os.replace(temporary, path)
                _remove(old)
            else:
                os.replace(temporary, path)
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
