"""Files: written under a temporary name, flushed to disk, then renamed; hashed; read as YAML or JSON."""

import errno
import glob
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from nmt.errors import InputError

FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The disk is full, the user's quota is, or the process or the disk allows no larger file."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # its base is chosen as this runs
    """A safe loader that refuses duplicate keys; by libyaml where PyYAML has it, which is ten times as fast."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set[str]()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"`{key.value}` is there twice", key.start_mark)
                seen.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def flush(path: Path) -> None:
    """Flush a file or folder to disk, so that a later rename never becomes durable before its content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:
        return isinstance(error, PermissionError)  # It belongs to another user.
    return True


def _temporary(path: Path) -> Path:
    """Return the temporary path for `path`, after removing those of killed processes of this machine."""
    start = f".{path.name}.{os.uname().nodename}."
    for entry in path.parent.glob(f"{glob.escape(start)}*.tmp"):
        process = entry.name.removeprefix(start).removesuffix(".tmp")
        if process.isdecimal() and (int(process) == os.getpid() or not _is_running(int(process))):
            _remove(entry)
    return path.with_name(f"{start}{os.getpid()}.tmp")


@contextmanager
def writing(path: Path, *, folder: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path`; at the end, rename the file or `folder` made there to `path`.

    After an error `path` is unchanged and the temporary file is removed. A kill leaves the old or the new content. A
    folder that replaces another is renamed in two steps; after a kill between them, the next call restores the old one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, old = _temporary(path), path.with_name(f".{path.name}.old")
    if old.exists() and not path.exists():
        os.replace(old, path)
    _remove(old)
    try:
        if folder:
            temporary.mkdir()
        yield temporary
        for part in temporary.rglob("*"):
            if not part.is_symlink():  # Not all file systems of what it names can flush.
                flush(part)
        flush(temporary)
        if temporary.is_dir() and path.exists():
            # A folder cannot be renamed over one that is not empty.
            os.replace(path, old)
        os.replace(temporary, path)
        flush(path.parent)
    finally:
        if old.exists() and not path.exists():
            os.replace(old, path)
        _remove(old)
        _remove(temporary)


def output_file(path: Path, *inputs: Path) -> Path:
    """Return the path of a file to write later, links followed; raise InputError if it cannot be written.

    `writing` would replace a device, a pipe, one of the files `inputs` or what lies in a folder of these: all refused.
    """
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is no regular file: name another path to write")
    named, path = path, path.resolve()
    above = next(folder for folder in path.parents if folder.exists())
    if not (above.is_dir() and os.access(above, os.W_OK)):
        raise InputError(f"{path} cannot be written: {above} is no folder that you may write in; name another path")
    for file in inputs:
        if file.resolve() == path:
            raise InputError(f"{named} is an input too, which it would replace: name another path to write")
        if file.resolve() in path.parents:
            raise InputError(f"{named} is in {file}, an input, which it would change: name another path to write")
    return path


@contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """Remove what killed processes left, yield an empty temporary folder beside `path`, and remove it at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
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


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of the files in a folder; 0 where nothing is there."""
    return sum(file.stat().st_size for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file; raise OSError, or InputError where it is not UTF-8 or not valid."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506 - it is a safe loader
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 (byte {error.start}): save it as UTF-8") from error
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, whole or not at all."""
    with writing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` whole or not at all, keys in the order given."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
