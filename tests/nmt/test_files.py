from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nmt.files import sha256_of, writing


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
import os, signal, sys
from pathlib import Path
from nmt import files
if sys.argv[2] == "between":
    files._remove = lambda path: path.suffix == ".old" and os.kill(os.getpid(), signal.SIGKILL)
with files.writing(Path(sys.argv[1])) as folder:
    folder.mkdir()
    (folder / "half").write_text("half")
    print("writing", flush=True)
    if sys.argv[2] == "amid":
        signal.pause()
"""


def writer(path: Path, where: str) -> subprocess.Popen[bytes]:
    """Another process that writes a folder; it has begun."""
    process = subprocess.Popen([sys.executable, "-c", WRITING, str(path), where], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"writing\n"
    return process


def test_what_a_killed_process_left_behind_goes_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    path = tmp_path / "fol+der"
    with writer(path, "amid") as process:
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


def test_the_old_one_that_stepped_aside_for_a_killed_process_goes(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    with writer(path, "between") as process:
        assert process.wait() == -signal.SIGKILL
    assert [name.rsplit(".", 1)[-1] for name in names(tmp_path)] == ["old", "folder"]
    with writing(path) as temporary:
        temporary.mkdir()
    assert names(tmp_path) == ["folder"]


def test_the_old_one_comes_back_where_a_killed_process_put_none_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "file").write_text("old")
    with writer(path, "between") as process:
        process.wait()
    # As if it had been killed one rename earlier.
    (aside,) = tmp_path.glob(".*.old")
    shutil.rmtree(path)
    with pytest.raises(RuntimeError, match="disk full"), writing(path):
        raise RuntimeError("disk full")
    assert not aside.exists()
    assert (path / "file").read_text() == "old"


def test_sha256(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a" * 3_000_000)
    assert sha256_of(path) == hashlib.sha256(b"a" * 3_000_000).hexdigest()
