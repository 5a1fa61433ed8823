from __future__ import annotations

import hashlib
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


def test_sha256(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a" * 3_000_000)
    assert sha256_of(path) == hashlib.sha256(b"a" * 3_000_000).hexdigest()
