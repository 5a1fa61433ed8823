import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import pytest
from text_lines import names

from nmt.common.files import writing

HERE = os.uname().nodename


@pytest.fixture
def dead() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        return process.pid


def leave(path: Path) -> Path:
    """A folder with a file in it, as a kill left it."""
    path.mkdir()
    (path / "file").write_text(path.name)
    return path


def test_temporary_names_of_killed_processes_are_removed_and_no_others(tmp_path: Path, dead: int) -> None:
    path = tmp_path / "fol+der"
    endings = (f"{HERE}.{dead}.tmp", f"{HERE}.{os.getpid()}.tmp", "old")
    gone = [leave(tmp_path / f".fol+der.{ending}") for ending in endings]
    stays = [
        leave(path),
        leave(tmp_path / f".fol+der.{HERE}.{os.getppid()}.tmp"),
        leave(tmp_path / f".fol+der.another-machine.{dead}.tmp"),
        leave(tmp_path / f".fol.{HERE}.{dead}.tmp"),
        leave(tmp_path / f".fol+der.{HERE}.x.tmp"),
    ]
    with writing(path) as temporary:
        assert temporary.name == f".fol+der.{HERE}.{os.getpid()}.tmp"
        assert not any(left.exists() for left in gone), "before the new one needs room"
        temporary.mkdir()
    assert names(tmp_path) == sorted(left.name for left in stays)


def test_temporary_names_of_another_user_stay(tmp_path: Path, dead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    left = leave(tmp_path / f".path.{HERE}.{dead}.tmp")
    monkeypatch.setattr(os, "kill", kill := Mock(side_effect=PermissionError))
    with writing(tmp_path / "path") as temporary:
        temporary.touch()
    assert left.exists()
    assert {call.args for call in kill.call_args_list} == {(dead, 0)}


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_error_at_a_rename_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    """Such as the exception by which a stage ends when it is asked to stop."""
    path, outcomes = leave(tmp_path / "path"), [KeyboardInterrupt if n == failing else DEFAULT for n in range(1, 9)]
    monkeypatch.setattr(os, "replace", Mock(wraps=os.replace, side_effect=outcomes))
    with pytest.raises((KeyboardInterrupt, FileNotFoundError)), writing(path) as temporary:
        (temporary if failing else temporary / "new/folder").mkdir()
    assert names(tmp_path) == ["path"]
    assert (path / "file").read_text() == "path"


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_all_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    calls: list[int | str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda opened: (fsync(opened), calls.append(os.fstat(opened).st_ino)))
    monkeypatch.setattr(os, "replace", lambda *paths: (replace(*paths), calls.append("replace")))
    path = tmp_path / "path"
    with writing(path) as temporary:
        if kind == "folder":
            (temporary / "inner").mkdir(parents=True)
            (temporary / "inner/file").write_text("content")
        else:
            temporary.write_text("content")
    named = calls.index("replace")
    assert set(calls[:named]) == {part.stat().st_ino for part in (path, *path.rglob("*"))}
    assert calls[named + 1 :] == [tmp_path.stat().st_ino]
