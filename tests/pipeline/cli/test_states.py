"""Training states: listed with size and progress, freed by name or age, never while a training holds one."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest
import yaml
from command_line import printed, refused, wmt

from nmt.common.processes import TRAINERS
from pipeline.cli import trainings


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WMT_STATE", str(tmp_path))
    make(tmp_path, "aaaa-1111", update=50, done=False)
    make(tmp_path, "aaaa-2222", update=100, done=True, days=20)
    make(tmp_path, "bbbb-1111", update=100, done=True)
    return tmp_path


def make(root: Path, name: str, update: int, done: bool, days: float = 0) -> None:
    folder = root / "train" / name
    (folder / f"resume/update-{update:08d}").mkdir(parents=True)
    (folder / "job.yaml").write_text(yaml.safe_dump({"training": {"updates": 100}}))
    weights = folder / f"resume/update-{update:08d}/model.safetensors"
    weights.write_bytes(bytes(2_000_000))
    os.link(weights, folder / "again.safetensors")
    (folder / "lock").touch()
    if done:
        (folder / "done.json").write_text("{}")
    old = time.time() - days * trainings.DAY
    for path in folder.rglob("*"):
        os.utime(path, (old, old))


def left(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "train").iterdir())


def test_they_are_listed(root: Path) -> None:
    lines = printed("states").splitlines()
    assert len(lines) == 5
    assert "aaaa-2222" in lines[3]
    assert "2 MB" in lines[3]
    assert "20.0 days ago  finished" in lines[3]
    assert any("aaaa-1111" in line and " 50 " in line and line.endswith("resumable") for line in lines)
    assert lines[-1].startswith("0.01 GB in all")


@pytest.mark.parametrize("content", ["", "{", "training: 1"])
def test_a_damaged_one_is_listed_to_be_freed(root: Path, content: str) -> None:
    (root / "train/aaaa-1111/job.yaml").write_text(content)
    (line,) = (line for line in printed("states").splitlines() if line.startswith("aaaa-1111"))
    assert line.split()[1:3] == ["50", "0"]


def test_old_finished_ones_and_one_by_the_beginning_of_its_name_are_freed(root: Path) -> None:
    make(root, "cccc-1111", update=10, done=False, days=90)
    assert wmt("states", "--older", "14") == 0
    assert left(root) == ["aaaa-1111", "bbbb-1111", "cccc-1111"]
    assert printed("states", "--free", "bbbb") == "freed bbbb-1111: 2 MB\n"
    assert left(root) == ["aaaa-1111", "cccc-1111"]
    make(root, "aaaa-1111-10", update=10, done=False, days=1)
    assert printed("states", "--free", "aaaa-1111").startswith("freed aaaa-1111: ")
    assert left(root) == ["aaaa-1111-10", "cccc-1111"]


@pytest.mark.parametrize(
    ("options", "status", "why"),
    [
        (("--free", "bbbb", "--free", "aaaa"), 1, "`aaaa` names 2 states: `wmt states` lists them"),
        (("--free", "bbbb", "--free", "x"), 1, "`x` names 0 states"),
        (("--free", ""), 1, "`` names 0 states"),
        (("--older", "-1"), 2, "--older"),
    ],
)
def test_an_unclear_name_or_age_frees_nothing(
    root: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], status: int, why: str
) -> None:
    assert wmt("states", *options) == status
    assert why in capsys.readouterr().err
    assert len(left(root)) == 3


@pytest.mark.parametrize(("name", "how"), [("lock", fcntl.LOCK_EX), (TRAINERS, fcntl.LOCK_SH)])
def test_one_in_training_is_left_alone(root: Path, name: str, how: int) -> None:
    """Be it in the processes of a stage that was killed."""
    with (root / "train/bbbb-1111" / name).open("w") as file:
        fcntl.flock(file, how)
        assert "training" in printed("states")
        assert "bbbb-1111 is being trained: stop it first" in refused("states", "--free", "bbbb")
    assert len(left(root)) == 3
