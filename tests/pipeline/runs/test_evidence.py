"""What a run's numbers rest on, where the system answers late or not at all."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pipeline.runs import evidence


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of that name before all others on PATH."""
    path = tmp_path / "bin/nvidia-smi"
    path.parent.mkdir()
    path.touch(0o755)
    monkeypatch.setenv("PATH", str(path.parent), prepend=":")
    return path


def test_a_slow_nvidia_smi_is_a_warning_and_an_unknown(nvidia_smi: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nvidia_smi.write_text("#!/bin/sh\nexec sleep 600\n")
    found = evidence.hardware(limit=0.5)
    assert found["gpus"] == "unknown"
    assert found["cpu"]
    assert capsys.readouterr().err == "tracking: nvidia-smi did not answer within 0.5 s: the run goes on without it\n"


def test_a_failing_nvidia_smi_is_an_unknown(nvidia_smi: Path) -> None:
    nvidia_smi.write_text("#!/bin/sh\nexit 9\n")
    assert evidence.hardware()["gpus"] == "unknown"


def test_gpus_are_listed_and_none_is_none(nvidia_smi: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvidia_smi.write_text("#!/bin/sh\necho 'A100, 40960 MiB'\necho 'A100, 40960 MiB'\n")
    assert evidence.hardware()["gpus"] == "A100, 40960 MiB; A100, 40960 MiB"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert evidence.hardware()["gpus"] == "none"


def test_a_slow_git_is_no_statement_about_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "git"
    path.write_text("#!/bin/sh\nexec sleep 600\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert evidence.code(limit=0.2) == {"commit": "unknown", "differing_files": "unknown: git names no commit here"}
    assert "git did not answer within 0.2 s" in capsys.readouterr().err


def test_new_files_differ_and_a_patch_is_equal_whatever_git_is_set_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=b", *words], cwd=tmp_path, check=True)

    monkeypatch.chdir(tmp_path)
    git("init", "--quiet")
    for name, content in (("kept.py", b"a\n"), ("table", bytes(9)), ("params.yaml", b"a\n"), (".gitignore", b"work\n")):
        Path(name).write_bytes(content)
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    assert evidence.code()["differing_files"] == "none"
    Path("kept.py").write_text("b\n")
    Path("table").write_bytes(bytes(8))
    Path("params.yaml").write_text("b\n")
    for name in ("extra.py", "work"):
        Path(name).touch()
    assert evidence.code()["differing_files"] == "kept.py, table, extra.py"
    patch = evidence.difference()
    assert "GIT binary patch" in patch
    git("config", "diff.noprefix", "true")
    git("config", "diff.external", "echo")
    assert evidence.difference() == patch
