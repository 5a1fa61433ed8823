"""`wmt join`: which training another machine joins, and what it refuses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from nmt.config import InputError
from pipeline.commands import join
from pipeline.training import launch

HERE = "first-machine:29400"


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that this machine trains in."""
    folders: list[Path] = []

    def run_node(job: Path, watch: Callable[[], None]) -> int:
        folders.append(job)
        watch()
        return 0

    monkeypatch.setattr(launch, "run_node", run_node)
    monkeypatch.setattr(join, "code_digest", lambda: "code")
    monkeypatch.setattr(join, "INTERVAL", 0.01)
    monkeypatch.setenv("WMT_STATE", str(tmp_path))
    monkeypatch.setenv("WMT_NODES", "2")
    monkeypatch.setenv("WMT_RENDEZVOUS", HERE)
    return folders


def training(root: Path, name: str, endpoint: str) -> Path:
    """The folder of a training whose first node has begun."""
    folder = root / "train" / name
    folder.mkdir(parents=True)
    (folder / "job.yaml").write_text("{}")
    (folder / launch.RENDEZVOUS).write_text(endpoint)
    return folder


def test_the_training_with_this_rendezvous_is_joined_when_it_begins(tmp_path: Path, trained: list[Path]) -> None:
    training(tmp_path, "other-code", "another-machine:29400")
    # First nodes that were killed leave this; so may the one that begins now.
    training(tmp_path, "dead-code", HERE)
    (training(tmp_path, "that-code", HERE) / "lock").touch()
    lock = FileLock(training(tmp_path, "this-code", HERE) / "lock", thread_local=False)
    threading.Timer(0.3, lock.acquire).start()
    assert join.join(None, 1.0) == 0
    lock.release()
    assert trained == [tmp_path / "train/this-code"]


def test_no_training_begins(trained: list[Path]) -> None:
    with pytest.raises(InputError, match=r"no training began at first-machine:29400 within 0 hours: start `dvc repro`"):
        join.join(None, 0.0)
    assert trained == []


def test_what_is_refused(tmp_path: Path, trained: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"holds no job\.yaml"):
        join.join(tmp_path, 0.0)
    with pytest.raises(InputError, match="trained with other code"):
        join.join(training(tmp_path, "this-older", HERE), 0.0)
    monkeypatch.setenv("WMT_NODES", "1")
    with pytest.raises(InputError, match="WMT_NODES is 1"):
        join.join(None, 0.0)
    assert trained == []


def test_the_first_node_names_the_rendezvous_while_it_trains(tmp_path: Path, trained: list[Path]) -> None:
    folder = tmp_path / "this-code"
    folder.mkdir()
    seen: list[str] = []
    assert launch.train(folder, lambda: seen.append((folder / launch.RENDEZVOUS).read_text())) == 0
    assert seen == [HERE]
    assert not (folder / launch.RENDEZVOUS).exists()
