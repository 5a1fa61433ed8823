"""What a run's numbers rest on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nmt.common.files import write_json
from pipeline.config.paths import status_file
from pipeline.tracking import source


def test_new_files_differ_and_a_patch_is_equal_whatever_git_is_set_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=b", *words], cwd=tmp_path, check=True)

    monkeypatch.chdir(tmp_path)
    assert source.code() == {"commit": "unknown", "differing_files": "unknown: git names no commit here"}
    git("init", "--quiet")
    for name, content in (("kept.py", b"a\n"), ("table", bytes(9)), ("params.yaml", b"a\n"), (".gitignore", b"work\n")):
        Path(name).write_bytes(content)
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    git("remote", "add", "origin", "https://me:secret@example.org/name")
    tags = source.tags()
    assert tags["differing_files"] == "none"
    assert tags["mlflow.source.name"] == "https://***@example.org/name"
    assert tags["versions"].startswith("python 3.")
    Path("kept.py").write_text("b\n")
    Path("table").write_bytes(bytes(8))
    Path("params.yaml").write_text("b\n")
    for name in ("extra.py", "work"):
        Path(name).touch()
    assert source.code()["differing_files"] == "kept.py, table, extra.py"
    patch = source.difference(*source.CODE)
    assert b"GIT binary patch" in patch
    assert b"params.yaml" not in patch
    git("config", "diff.noprefix", "true")
    git("config", "diff.external", "echo")
    assert source.difference(*source.CODE) == patch


def test_stages_have_the_time_that_they_last_took_here(root: Path) -> None:
    for name, content in (
        ("train", {"state": "done", "seconds": 90.0}),
        ("score", {"state": "failed"}),
        ("report", {"state": "done", "seconds": 1.0}),
    ):
        write_json(status_file(name), content)
    times = source.provenance()[0]
    assert next(iter(times)) == "resolve"
    assert "report" not in times
    assert (times["train"], times["score"], times["decode"]) == (90.0, None, None)


def test_the_run_is_named_as_dvc_and_prefect_name_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert source.provenance()[1] == ["commit unknown"]
    monkeypatch.setenv("DVC_EXP_NAME", "bold-run")
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "0a1b")
    assert source.provenance()[1] == ["commit unknown", "DVC experiment bold-run", "Prefect run 0a1b"]
