from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nmt.common.files import scratch_folder, writing


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def dead() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        return process.pid


HERE = os.uname().nodename


def leave(path: Path) -> Path:
    """A folder with a file in it, as a kill left it."""
    path.mkdir()
    (path / "file").write_text(path.name)
    return path


def test_temporary_names_of_killed_processes_are_removed_and_no_others(tmp_path: Path, dead: int) -> None:
    path = tmp_path / "fol+der"
    gone = [
        leave(tmp_path / f".fol+der.{HERE}.{dead}.tmp"),
        leave(tmp_path / f".fol+der.{HERE}.{os.getpid()}.tmp"),
        leave(tmp_path / ".fol+der.old"),
    ]
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


def test_temporary_names_of_another_users_process_stay(
    tmp_path: Path, dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(process: int, number: int) -> None:
        assert (process, number) == (dead, 0)
        raise PermissionError

    left = leave(tmp_path / f".path.{HERE}.{dead}.tmp")
    monkeypatch.setattr(os, "kill", refused)
    with writing(tmp_path / "path") as temporary:
        temporary.touch()
    assert left.exists()


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_error_before_or_between_the_two_renames_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """Such as the exception by which a stage ends when it is asked to stop."""
    path, replace, calls = leave(tmp_path / "path"), os.replace, list[Path]()

    def limited(source: Path, target: Path) -> None:
        calls.append(source)
        if len(calls) == failing:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", limited)
    with pytest.raises((KeyboardInterrupt, FileNotFoundError)), writing(path) as temporary:
        (temporary if failing else temporary / "new/folder").mkdir()
    assert names(tmp_path) == ["path"]
    assert (path / "file").read_text() == "path"


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_everything_is_on_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    calls: list[int | str] = []
    fsync, replace = os.fsync, os.replace

    def recorded_fsync(descriptor: int) -> None:
        fsync(descriptor)
        calls.append(os.fstat(descriptor).st_ino)

    def recorded_replace(source: Path, target: Path) -> None:
        replace(source, target)
        calls.append("replace")

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "replace", recorded_replace)
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


def test_a_scratch_folder_goes_and_so_do_those_of_killed_processes(tmp_path: Path, dead: int) -> None:
    left = tmp_path / f".verify.{os.uname().nodename}.{dead}.tmp/folder"
    left.mkdir(parents=True)
    with scratch_folder(tmp_path / "verify") as folder:
        (folder / "file").touch()
        assert list(tmp_path.iterdir()) == [folder]
    assert not list(tmp_path.iterdir())
