"""Files and folders that are whole or absent: written under a temporary name, flushed to disk, then renamed."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


def _prefix(path: Path) -> str:
    """How names of temporaries for `path` begin. The machine is in them: another's processes cannot be looked up."""
    return f".{path.name}.{os.uname().nodename}."


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


def _sweep(path: Path) -> None:
    """Remove what processes of this machine that were killed while they wrote `path` left beside it."""
    name = re.compile(re.escape(_prefix(path)) + r"([0-9]{1,9})\.(tmp|old)")
    for left in list(path.parent.iterdir()):
        match = name.fullmatch(left.name)
        if match is None or _is_at_work(int(match[1])):
            continue
        # What cannot be removed stops nothing: another process may be sweeping at the same time.
        with suppress(OSError):
            if match[2] == "old" and not path.exists():
                os.replace(left, path)  # Killed between the two renames: this is what stood there.
            else:
                _remove(left)


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; what was made there (a file or a folder) takes its place at the end.

    After an error, whatever stood at `path` before still stands there and the temporary one is gone. What a killed
    process leaves, the next one that writes `path` on the same machine removes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    temporary = path.with_name(f"{_prefix(path)}{os.getpid()}.tmp")
    _remove(temporary)
    try:
        yield temporary
        if temporary.is_dir():
            for child in temporary.rglob("*"):
                _flush(child)
            _flush(temporary)
            if path.exists():
                # A folder cannot be renamed over a full one: the old one steps aside for the moment between.
                old = path.with_name(f"{_prefix(path)}{os.getpid()}.old")
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
