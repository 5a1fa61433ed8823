"""Where a training keeps its state: what decides the weights names it, and a longer one is never taken back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nmt.config import InputError
from pipeline import join, train

Folder = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """The state folder of a job whose training settings are given, in an empty repository of one binned file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WMT_STATE", raising=False)
    monkeypatch.delenv("WMT_RESUME_ACROSS_CODE", raising=False)
    monkeypatch.setattr(train, "code_dependencies", lambda: ["code.py"])
    Path("code.py").write_text("1")
    train.BINNED.mkdir(parents=True)
    (train.BINNED / "train.00008.arrow").write_bytes(b"ids")

    def state(**training: Any) -> Path:
        settings = {"updates": 100, "tokens": 10, "resume_minutes": 1, "validate_every": 10, "patience": None}
        return train.state_folder({"model": {}, "training": {**settings, **training}, "vocabulary": 8})

    return state


def came_to(state: Path, update: int) -> None:
    (state / f"resume/update-{update:08d}").mkdir(parents=True)


def test_more_updates_go_on_and_other_settings_start_anew(folder: Folder) -> None:
    state = folder()
    came_to(state, 100)
    assert folder(updates=200) == state
    assert folder(validate_every=20, resume_minutes=9) == state
    assert folder(tokens=20) != state


def test_a_shorter_training_leaves_the_longer_one_alone(folder: Folder) -> None:
    state = folder(updates=100_000)
    came_to(state, 30_000)
    assert folder(updates=50_000) == state
    shorter = folder(updates=500)
    assert shorter != state
    came_to(shorter, 500)
    assert folder(updates=500) == shorter
    assert folder(updates=100_000) == state


def test_patience_names_the_state_because_it_decides_where_training_ends(folder: Folder) -> None:
    assert len({folder(), folder(patience=2), folder(patience=3), folder(patience=2, validate_every=20)}) == 4


def test_across_code_the_exact_state_comes_first_and_then_the_furthest(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = folder()
    came_to(first, 20)
    Path("code.py").write_text("2")
    second = folder()
    came_to(second, 10)
    Path("code.py").write_text("3")
    third = folder()
    monkeypatch.setenv("WMT_RESUME_ACROSS_CODE", "1")
    assert folder() == first
    came_to(third, 5)
    assert folder() == third


def test_a_further_machine_has_the_code_of_the_first(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WMT_NODES", "2")
    monkeypatch.setenv("WMT_RENDEZVOUS", "first:29400")
    state = folder()
    state.mkdir(parents=True)
    (state / "job.yaml").touch()
    Path("code.py").write_text("2")
    with pytest.raises(InputError, match="the code here is not that which"):
        join.join(state)


def test_what_a_process_refuses_is_told_at_once(tmp_path: Path) -> None:
    """torchrun would start it again, a hundred times on several nodes."""
    train.refused(tmp_path)
    (tmp_path / "failed.json").write_text('{"state": "failed", "error": "a bug"}')
    train.refused(tmp_path)
    (tmp_path / "failed.json").write_text('{"state": "refused", "error": "mend this"}')
    with pytest.raises(InputError, match="mend this"):
        train.refused(tmp_path)
