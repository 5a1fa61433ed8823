"""A full disk leaves what stood there before (what it says: tests/pipeline/test_runner.py)."""

from __future__ import annotations

import errno
import hashlib
import importlib
import os
import resource
from pathlib import Path
from typing import Any

import pytest
from data_stages import configure

STAGES = ("download", "tokenize", "learn_subwords", "binarize")


def text(name: str) -> dict[str, Any]:
    sides = {}
    for side, language in (("source", "en"), ("target", "de")):
        path = Path(f"local/{name}.{language}")
        sides[side] = {"path": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    return {"name": name, **sides}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every stage has run."""
    folder = tmp_path_factory.mktemp("repository")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("WMT_STATE", raising=False)
        patch.delenv("DVC_ROOT", raising=False)
        Path("local").mkdir()
        lines = [f"The {n} house is not like the other {n * n} houses of {n % 7} street .\n" for n in range(1500)]
        for name, count in (("like", 1500), ("dev", 9), ("exam", 9)):
            for language in ("en", "de"):
                Path(f"local/{name}.{language}").write_text("".join(lines[:count]))
        texts = {"train": [text("like")], "valid": text("dev"), "test": text("exam")}
        configure(
            {"source": "en", "target": "de", "archives": [], **texts},
            preparation={
                "tokenizer": {"tokenizer": "moses", "normalize_punctuation": False, "aggressive_hyphens": False},
                "filters": {"min_tokens": 1, "max_tokens": 80, "max_ratio": 9.0, "drop_identical": False},
            },
            subwords={"kind": "bpe", "merges": 800, "vocabulary": None, "multiple_of": 8},
            binning={"max_length": 64, "growth": 1.2},
        )
        for stage in STAGES:
            run(stage)
    return folder


def run(stage: str) -> None:
    importlib.import_module(f"pipeline.stages.{stage}").run()


def contents() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(Path("data").rglob("*")) if path.is_file()}


@pytest.mark.parametrize("stage", STAGES)
def test_no_stage_leaves_half_an_output(repository: Path, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    monkeypatch.chdir(repository)
    before = contents()
    # Files that may not grow are what a test can make of a full disk without a disk of its own.
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000 if stage == "learn_subwords" else 20_000, -1))
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            run(stage)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
    assert contents() == before
