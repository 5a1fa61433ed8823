"""A full disk is told in one sentence, and what stood there before still stands: on disks that really refuse."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.corpora.disk import IN_CACHE

ROOT = Path(__file__).resolve().parents[3]
ROOM = {"download": 200, "tokenize": 200, "learn_subwords": 4, "binarize": 100}
"""KiB that are left on the disk: less than what the stage writes."""
OUTPUT = {"download": "raw", "tokenize": "tokenized", "learn_subwords": "subwords", "binarize": "binned"}
KEPT = {**dict.fromkeys(OUTPUT, IN_CACHE), "download": "what is fetched so far is kept"}

STAGE = """
import resource, sys
from nmt.config import InputError
from pipeline.stages import {stage}
class Silent:
    metrics = tags = artifact = lambda self, *_: None
if {limit}:
    resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try:
    {stage}.run(Silent())
except InputError as error:
    sys.exit(str(error))
"""

# In a namespace of its own, whose mounts end with it: data/ on a small file system that is full but for $1 KiB.
FULL = """
mount -t tmpfs -o size=16m none data && cp -r kept/. data/ || exit 77
dd if=/dev/zero of=data/filler bs=4k 2>/dev/null
truncate -s "-$1k" data/filler
shift
"$@"
status=$?
rm data/filler && rm -rf kept && cp -r data kept
exit $status
"""
PRIVATE = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]


def text(name: str) -> dict[str, Any]:
    sides = {}
    for side, language in (("source", "en"), ("target", "de")):
        path = Path(f"local/{name}.{language}")
        sides[side] = {"path": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    return {"name": name, **sides}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration, local text, what the stages before left, and of every stage an older output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    for folder in ("results", "data", "local", "kept/raw", "kept/tokenized"):
        Path(folder).mkdir(parents=True)
    lines = [f"The {n} house is not like the other {n * n} houses of {n % 7} street .\n" for n in range(8000)]
    for name, count in (("like", 8000), ("dev", 9), ("exam", 9)):
        for language in ("en", "de"):
            Path(f"local/{name}.{language}").write_text("".join(lines[:count]))
    for role, name in (("train", "like"), ("valid", "dev"), ("test", "exam")):
        for language in ("en", "de"):
            shutil.copy(f"local/{name}.{language}", f"kept/raw/{role}.{name}.{language}")
            shutil.copy(f"local/{name}.{language}", f"kept/tokenized/{role}.{language}")
    packages = ("sacremoses", "subword_nmt", "sentencepiece", "sacrebleu")
    configuration = {
        "data": {
            "source": "en",
            "target": "de",
            "archives": [],
            "train": [text("like")],
            "valid": text("dev"),
            "test": text("exam"),
        },
        "preparation": {
            "tokenizer": {"tokenizer": "moses", "normalize_punctuation": False, "aggressive_hyphens": False},
            "filters": {"min_tokens": 1, "max_tokens": 80, "max_ratio": 9.0, "drop_identical": False},
        },
        "subwords": {"kind": "bpe", "merges": 800, "vocabulary": None, "multiple_of": 8},
        "binning": {"max_length": 64, "growth": 1.2},
        "versions": {package: version(package.replace("_", "-")) for package in packages},
    }
    Path("results/config.yaml").write_text(yaml.safe_dump(configuration))
    return tmp_path


def run(stage: str, *before: str, limit: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WMT_STATE": "state"}
    command = [*before, sys.executable, "-c", STAGE.format(stage=stage, limit=limit)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def contents(folder: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first test that needs subwords leaves them for the others, whose text is the same."""
    return tmp_path_factory.mktemp("learned") / "subwords"


def given_subwords(stage: str, learned: Path) -> None:
    """Binarize needs subwords; every stage has an older output that must survive."""
    if stage == "binarize":
        if not learned.exists():
            shutil.copytree("kept", "data", dirs_exist_ok=True)
            assert run("learn_subwords").returncode == 0
            shutil.copytree("data/subwords", learned)
            shutil.rmtree("data")
            Path("data").mkdir()
        shutil.copytree(learned, "kept/subwords")
    Path(f"kept/{OUTPUT[stage]}").mkdir(exist_ok=True)
    Path(f"kept/{OUTPUT[stage]}/older").write_text("an older output")


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize("stage", OUTPUT)
def test_files_that_may_not_grow(stage: str, learned: Path) -> None:
    given_subwords(stage, learned)
    shutil.copytree("kept", "data", dirs_exist_ok=True)
    before = contents("data")
    result = run(stage, limit=2000 if stage == "learn_subwords" else 50_000)
    assert result.returncode == 1
    assert result.stderr.startswith("File too large: ")
    assert result.stderr.count("\n") == 1
    assert result.stderr.endswith(f"; make room and run again: {KEPT[stage]}\n")
    assert contents("data") == before


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize("stage", OUTPUT)
def test_a_full_disk(stage: str, learned: Path) -> None:
    given_subwords(stage, learned)
    before = contents("kept")
    result = run(stage, *PRIVATE, FULL, "sh", str(ROOM[stage]))
    if result.returncode == 77 or "unshare" in result.stderr:
        pytest.skip("no small file system can be mounted here: that takes Linux and user namespaces")
    assert result.returncode == 1
    assert result.stderr.startswith("No space left on device: ")
    assert result.stderr.count("\n") == 1
    assert result.stderr.endswith(f"; make room and run again: {KEPT[stage]}\n")
    assert contents("kept") == before
