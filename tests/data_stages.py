"""What tests of the data stages share: a resolved configuration, a pool of one thread, a full disk."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import resource
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

ONE_THREAD = ThreadPoolExecutor(1)
PACKAGES = ("sacremoses", "subword_nmt", "sentencepiece", "sacrebleu")


def data_section(*corpora: str, valid: str = "dev", test: str = "exam") -> dict[str, Any]:
    """Return the section `data` with local files of these names."""

    def named(name: str) -> dict[str, Any]:
        member = {"path": name, "sha256": "0" * 64}
        return {"name": name, "source": member, "target": member}

    texts = {"train": [named(corpus) for corpus in corpora], "valid": named(valid), "test": named(test)}
    return {"source": "en", "target": "de", "archives": [], **texts}


def configure(data: dict[str, Any], versions: Mapping[str, str] | None = None, **sections: Any) -> None:
    """Write results/config.yaml with the installed versions, but for those given."""
    installed = {package: version(package.replace("_", "-")) for package in PACKAGES}
    config = {"data": data, **sections, "versions": {**installed, **(versions or {})}}
    Path("results").mkdir(exist_ok=True)
    Path("results/config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")


def write_sides(stem: Path, pairs: Sequence[tuple[str, str]]) -> tuple[Path, Path]:
    """Write the sides of pairs to <stem>.en and <stem>.de; return these paths."""
    paths = Path(f"{stem}.en"), Path(f"{stem}.de")
    stem.parent.mkdir(parents=True, exist_ok=True)
    for side, path in enumerate(paths):
        path.write_bytes("".join(f"{pair[side]}\n" for pair in pairs).encode())
    return paths


def check_full_disk(run: Callable[[], None]) -> None:
    """Run a stage that has no room for its output: it leaves what stood there before."""

    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in Path("data").rglob("*") if path.is_file()}

    before, (_, most) = content(), resource.getrlimit(resource.RLIMIT_FSIZE)
    # Files that may not grow are what a test can make of a full disk without a disk of its own.
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, most))
    try:
        with contextlib.redirect_stdout(io.StringIO()), pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert content() == before
