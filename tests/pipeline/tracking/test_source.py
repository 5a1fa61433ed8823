from __future__ import annotations

from pathlib import Path

import pytest
from clones import commit, git

from pipeline.tracking import source


def test_new_files_differ_and_a_patch_is_equal_whatever_git_is_set_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert source.code() == {"commit": "unknown", "differing_files": "unknown: git names no commit here"}
    for name, content in (("kept.py", b"a\n"), ("table", bytes(9)), ("params.yaml", b"a\n"), (".gitignore", b"work\n")):
        Path(name).write_bytes(content)
    commit()
    git(tmp_path, "remote", "add", "origin", "https://me:secret@example.org/name")
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
    git(tmp_path, "config", "diff.noprefix", "true")
    git(tmp_path, "config", "diff.external", "echo")
    assert source.difference(*source.CODE) == patch


def test_a_report_gets_the_names_of_the_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert source.provenance() == ["commit unknown"]
    monkeypatch.setenv("DVC_EXP_NAME", "bold-run")
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "0a1b")
    assert source.provenance() == ["commit unknown", "DVC experiment bold-run", "Prefect run 0a1b"]
