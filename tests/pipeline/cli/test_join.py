from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import refused, wmt
from filelock import FileLock

from nmt.common.processes import is_held
from pipeline.cli import runs
from pipeline.trainings import identity, launch

HERE = "first-machine:29400"


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that this machine trains in."""
    folders: list[Path] = []

    def torchrun(job: Path, watch: Callable[[], None]) -> int:
        watch()
        assert is_held(job / "lock"), "its first node runs"
        folders.append(job)
        return 7

    monkeypatch.setattr(launch, "torchrun", torchrun)
    monkeypatch.setattr(identity, "code_digest", lambda job: "code")
    monkeypatch.setattr(runs, "INTERVAL", 0.01)
    monkeypatch.setattr("pipeline.cli.runs.signal.signal", lambda *_: None)
    monkeypatch.setenv("WMT_STATE", str(tmp_path))
    monkeypatch.setenv("WMT_NODES", "2")
    monkeypatch.setenv("WMT_RENDEZVOUS", HERE)
    return folders


def training(root: Path, name: str, endpoint: str) -> FileLock:
    """The lock of a training whose first node has begun."""
    folder = root / "train" / name
    folder.mkdir(parents=True)
    (folder / launch.RENDEZVOUS).write_text(endpoint)
    (folder / "job.yaml").write_text("{}")
    return FileLock(folder / "lock", thread_local=False)


def test_the_training_with_this_rendezvous_is_joined_when_it_begins(tmp_path: Path, trained: list[Path]) -> None:
    # First nodes that were killed leave such files; so may the one that begins now.
    training(tmp_path, "dead-code", HERE)
    (tmp_path / "train/dead-code/lock").touch()
    lock = training(tmp_path, "this-code", HERE)
    with training(tmp_path, "other-code", "another-machine:29400"):
        threading.Timer(0.3, lock.acquire).start()
        assert wmt("join") == 7
    lock.release()
    assert trained == [tmp_path / "train/this-code"]


@pytest.mark.parametrize(
    ("name", "left", "nodes", "why"),
    [
        ("this-older", None, "2", "this-older is trained with other code than this machine has: check out"),
        ("this-code", "interrupted", "2", "the training was asked to stop"),
        ("this-code", "failed.json", "2", "mend this"),
        ("this-code", None, "1", "WMT_NODES is 1: set it and WMT_RENDEZVOUS"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, trained: list[Path], monkeypatch: pytest.MonkeyPatch,
    name: str, left: str | None, nodes: str, why: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("WMT_NODES", nodes)
    with training(tmp_path, name, HERE):
        if left is not None:
            (tmp_path / "train" / name / left).write_text('{"state": "refused", "error": "mend this"}')
        assert why in refused("join")
    assert trained == []
