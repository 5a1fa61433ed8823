from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nmt.common.files import DAY, scratch_folder, sha256_of, writing


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_whole_under_its_name(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    with writing(path) as temporary:
        temporary.write_text("half")
        assert not path.exists()
        temporary.write_text("whole")
    assert path.read_text() == "whole"
    assert names(path.parent) == ["file.txt"]


def test_a_folder_takes_the_place_of_a_full_one(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    for content in ("first", "second"):
        with writing(path) as temporary:
            (temporary / "inner").mkdir(parents=True)
            (temporary / "inner" / content).write_text(content)
    assert names(tmp_path) == ["folder"]
    assert names(path / "inner") == ["second"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_after_an_error_the_old_one_stands(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "old"

    def make(where: Path, content: str) -> None:
        if kind == "folder":
            where.mkdir()
            where /= "file"
        where.write_text(content)

    def fail() -> None:
        with writing(path) as temporary:
            make(temporary, "half")
            raise RuntimeError("disk full")

    make(path, "old")
    with pytest.raises(RuntimeError, match="disk full"):
        fail()
    assert names(tmp_path) == ["old"]
    assert (path / "file" if kind == "folder" else path).read_text() == "old"


def test_what_a_killed_process_left_behind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with writing(path) as temporary:
        left = temporary
        temporary.write_text("old")
    left.mkdir()
    (left / "rest").write_text("of a killed process with this number")
    with writing(path) as temporary:
        temporary.write_text("new")
    assert names(tmp_path) == ["file"]


WRITING = """
import signal, sys
from pathlib import Path
from nmt.common import files
with files.writing(Path(sys.argv[1])) as folder:
    folder.mkdir()
    (folder / "half").write_text("half")
    print("writing", flush=True)
    signal.pause()
"""


def writer(path: Path) -> subprocess.Popen[bytes]:
    """Another process that writes a folder; it has begun."""
    process = subprocess.Popen([sys.executable, "-c", WRITING, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"writing\n"
    return process


def test_what_a_killed_process_left_behind_goes_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    path = tmp_path / "fol+der"
    with writer(path) as process:
        (begun,) = names(tmp_path)
        elsewhere = begun.replace(os.uname().nodename, "another-machine")
        (tmp_path / elsewhere).mkdir()
        with writing(path) as temporary:
            temporary.write_text("new")
        assert names(tmp_path) == sorted([begun, elsewhere, "fol+der"])
        process.kill()
    with writing(tmp_path / "fol") as temporary:
        temporary.write_text("another target")
    assert names(tmp_path) == sorted([begun, elsewhere, "fol", "fol+der"])
    with writing(path) as temporary:
        assert not (tmp_path / begun).exists(), "before room is needed for the new one"
        temporary.write_text("newer")
    assert names(tmp_path) == sorted([elsewhere, "fol", "fol+der"])


@pytest.fixture
def dead() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        return process.pid


HERE = os.uname().nodename


def leave(path: Path, days: float = 0.0) -> Path:
    """A folder with a file in it, as a kill `days` ago left it."""
    path.mkdir()
    (path / "file").write_text(path.name)
    for part in (path / "file", path):
        os.utime(part, (time.time() - days * DAY,) * 2)
    return path


def test_what_nobody_writes_any_more_goes_and_all_else_stays(tmp_path: Path, dead: int) -> None:
    path = leave(tmp_path / "path")
    living = os.getppid()
    gone = [
        leave(tmp_path / f".path.{HERE}.{dead}.tmp"),
        leave(tmp_path / f".path.{HERE}.{dead}.old"),
        leave(tmp_path / f".path.{HERE}.{os.getpid()}.old"),
        leave(tmp_path / ".path.there.1.tmp", days=1.1),
        leave(tmp_path / ".path.there.example.org.123456789.old", days=1.1),
    ]
    growing = leave(tmp_path / ".path.there.2.tmp", days=1.1)
    (growing / "file").write_text("more")
    os.utime(growing, (0, 0))
    stays = [
        path,
        growing,
        leave(tmp_path / f".path.{HERE}.{living}.tmp", days=9),
        leave(tmp_path / f".path.{HERE}.{living}.old", days=9),
        leave(tmp_path / ".path.there.1.old", days=0.9),
        leave(tmp_path / f".other.{HERE}.{dead}.tmp", days=9),
        leave(tmp_path / f".path.{HERE}.{dead}.tmp.copy", days=9),
        leave(tmp_path / f".path.{HERE}.1234567890.tmp", days=9),
        leave(tmp_path / ".path.there.x.tmp", days=9),
    ]
    with writing(path) as temporary:
        assert temporary.name == f".path.{HERE}.{os.getpid()}.tmp"
        assert not any(left.exists() for left in gone), "before room is needed for the new one"
        temporary.mkdir()
    assert names(tmp_path) == sorted(left.name for left in stays)


def test_a_process_of_another_user_is_at_work(tmp_path: Path, dead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    left = leave(tmp_path / f".path.{HERE}.{dead}.tmp")

    def refused(process: int, number: int) -> None:
        assert (process, number) == (dead, 0)
        raise PermissionError

    monkeypatch.setattr(os, "kill", refused)
    with writing(tmp_path / "path") as temporary:
        temporary.touch()
    assert left.exists()


def fail(path: Path) -> None:
    with pytest.raises(RuntimeError, match="disk full"), writing(path):
        raise RuntimeError("disk full")


def test_the_old_one_comes_back_where_a_killed_process_put_none_in_its_place(tmp_path: Path, dead: int) -> None:
    aside = leave(tmp_path / f".path.{HERE}.{dead}.old")
    leave(tmp_path / f".path.{HERE}.{dead}.tmp")
    fail(tmp_path / "path")
    assert names(tmp_path) == ["path"]
    assert (tmp_path / "path/file").read_text() == aside.name


def test_the_old_one_of_another_machine_is_not_removed_while_nothing_replaces_it(tmp_path: Path) -> None:
    """Nor taken for this path's: the machine's name may begin with another path's end."""
    aside = leave(tmp_path / ".path.there.1.old", days=2)
    fail(tmp_path / "path")
    assert names(tmp_path) == [aside.name]
    with writing(tmp_path / "path") as temporary:
        temporary.mkdir()
    with writing(tmp_path / "path") as temporary:
        temporary.mkdir()
    assert names(tmp_path) == ["path"]


@pytest.mark.parametrize("failing", [1, 2])
def test_an_error_between_two_renames_leaves_the_old_one(
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
    with pytest.raises(KeyboardInterrupt), writing(path) as temporary:
        temporary.mkdir()
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


def test_sha256(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a" * 3_000_000)
    assert sha256_of(path) == hashlib.sha256(b"a" * 3_000_000).hexdigest()
