"""What tests of the data stages share: a resolved configuration, a pool of one thread, a full disk."""

import contextlib
import errno
import io
import os
import resource
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from text_lines import write_lines

ONE_THREAD = ThreadPoolExecutor(1)
PACKAGES = ("sacremoses", "subword_nmt", "sentencepiece", "sacrebleu")


def data_section(*corpora: str, valid: str = "dev", test: str = "exam") -> dict[str, Any]:
    """Return the section `data` with local files of these names."""

    def named(name: str) -> dict[str, Any]:
        member = {"path": name, "sha256": "0" * 64}
        return {"name": name, "source": member, "target": member}

    texts = {"train": [named(corpus) for corpus in corpora], "valid": named(valid), "test": named(test)}
    return {"source": "en", "target": "de", "archives": [], **texts}


def configure(data: dict[str, Any], **sections: Any) -> None:
    """Write results/config.yaml with the installed versions."""
    config = {"data": data, **sections, "versions": {name: version(name.replace("_", "-")) for name in PACKAGES}}
    Path("results").mkdir(exist_ok=True)
    Path("results/config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")


def write_sides(stem: Path, pairs: Sequence[tuple[str, str]]) -> tuple[Path, Path]:
    """Write the sides of pairs to <stem>.en and <stem>.de; return these paths."""
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    return write_lines(Path(f"{stem}.en"), sources), write_lines(Path(f"{stem}.de"), targets)


@contextlib.contextmanager
def full_disk(room: int) -> Iterator[None]:
    """No file may grow beyond so many bytes: what a test can make of a full disk without a disk of its own."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def contents(*folders: str) -> dict[str, bytes]:
    """All files of the folders, also hidden ones, by path."""
    found = (path for folder in folders for path in Path(folder).rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in found}


def check_full_disk(run: Callable[[], None]) -> None:
    """Run a stage that has no room for its output: it leaves what stood there before."""
    before, too_big = contents("data"), os.strerror(errno.EFBIG)
    with full_disk(50), contextlib.redirect_stdout(io.StringIO()), pytest.raises(OSError, match=too_big):
        run()
    assert contents("data") == before
