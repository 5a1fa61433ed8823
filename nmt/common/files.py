"""Files: written under a temporary name, flushed to disk, then renamed; hashed; read as YAML."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from nmt.config import InputError


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # its base is chosen as this runs
    """A safe loader that refuses a key that is there twice, of which PyYAML takes the last.

    It uses libyaml's parser, or PyYAML's own, which takes ten times as long, where PyYAML was built without libyaml.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set[str]()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"`{key.value}` is there twice", key.start_mark)
                seen.add(key.value)
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


DAY = 86_400.0
"""Seconds without a change after which another machine's temporary file counts as abandoned."""


def flush(path: Path) -> None:
    """Flush the file or folder at `path` to disk, so that a later rename never becomes durable before its content."""
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
    """Return the temporary path for `path`; it names machine and process, so that abandoned ones are recognised."""
    return path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.tmp")


def _is_other_process(process: int) -> bool:
    """Return whether another process with this id runs: a temporary file with our own id is from a killed process."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # It belongs to another user.
    return True


def _is_abandoned(path: Path, machine: str, process: int) -> bool:
    """Return whether no process writes this temporary file or folder any more."""
    if machine == os.uname().nodename:
        return not _is_other_process(process)
    return time.time() - max(part.lstat().st_mtime for part in (path, *path.rglob("*"))) > DAY


def _sweep(path: Path) -> None:
    """Remove temporary files that killed processes left beside `path`; restore a folder they had renamed."""
    name = re.compile(re.escape(f".{path.name}.") + r"(.+)\.([0-9]{1,9})\.(tmp|old)")
    # Reverse order removes a process' .tmp before its .old is renamed to that name.
    for entry in sorted(path.parent.iterdir(), reverse=True):
        match = name.fullmatch(entry.name)
        # A failure to remove is no error: another process may remove the same file now.
        with suppress(OSError):
            if match is None or not _is_abandoned(entry, match[1], int(match[2])):
                continue
            if match[3] == "tmp":
                _remove(entry)
            elif path.exists():
                # A folder named .old is complete; `path` has replaced it.
                _remove(entry.rename(entry.with_suffix(".tmp")))
            elif match[1] == os.uname().nodename:
                os.replace(entry, path)  # Killed between the two renames: restore the old folder.


def _put(temporary: Path, path: Path) -> None:
    """Rename a folder to `path`; a folder that was there before is at `temporary` afterwards."""
    # A folder cannot be renamed over one that is not empty, so the old one is renamed first.
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
    """Yield a temporary path beside `path`; at the end, rename the file or folder made there to `path`.

    After an error `path` is unchanged and the temporary file is removed. A kill leaves the old or the new content. Only
    a folder that replaces another is renamed in two steps; after a kill between them, the next process that writes
    `path` on the same machine restores the old folder. That process also removes temporary files of killed processes;
    those of other machines are removed once they have not changed for a day.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    temporary = _temporary(path)
    _remove(temporary)
    try:
        yield temporary
        if temporary.is_dir():
            for child in temporary.rglob("*"):
                flush(child)
            flush(temporary)
            _put(temporary, path)
        else:
            flush(temporary)
            os.replace(temporary, path)
        flush(path.parent)
    finally:
        _remove(temporary)


def output_file(path: Path) -> Path:
    """Return the path, links followed, of a file to write later; raise InputError where it could not be written.

    A complete file would replace a device, a pipe or a link, so the first two are refused and links are followed.
    """
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is no regular file: name another path to write")
    path = path.resolve()
    above = next(folder for folder in path.parents if folder.exists())
    if not (above.is_dir() and os.access(above, os.W_OK)):
        raise InputError(f"{path} cannot be written: {above} is no folder that you may write in; name another path")
    return path


@contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder beside `path`, and remove it at the end.

    It first removes those of killed processes, as `writing` does.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    temporary = _temporary(path)
    temporary.mkdir()
    try:
        yield temporary
    finally:
        _remove(temporary)


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Make a hard link or, where the disk has none, a copy. Only for files that are never changed in place."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parse_yaml(content: str | bytes) -> Any:
    """Return the content of a YAML document; raise yaml.YAMLError where it is not valid."""
    return yaml.load(content, Loader=_Loader)  # noqa: S506 - it is a safe loader


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file; raise OSError, or InputError where it is not UTF-8 or not valid."""
    try:
        return parse_yaml(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 (byte {error.start}): save it as UTF-8") from error
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
