from pathlib import Path

from clones import commit, git

from pipeline.config.git import CODE, code, difference


def test_new_files_differ_and_a_patch_is_equal_whatever_git_is_set_to(here: Path) -> None:
    assert code() == {"commit": "unknown", "differing_files": "unknown: git names no commit here"}
    files = {"kept.py": b"a\n", "table": bytes(9), "params.yaml": b"a\n", ".gitignore": b"work\n*.pyc\n"}
    for name, content in files.items():
        Path(name).write_bytes(content)
    commit()
    assert code()["differing_files"] == "none"
    Path("kept.py").write_text("b\n")
    Path("table").write_bytes(bytes(8))
    Path("params.yaml").write_text("b\n")
    for name in ("extra.py", "work", "dvc.lock", "Übersicht"):
        Path(name).touch()
    Path("env/bin").mkdir(parents=True)
    Path("env/bin/python").touch()
    Path("gone").mkdir()
    Path("gone/left.pyc").touch()
    assert code()["differing_files"] == "kept.py, table, env/, extra.py, Übersicht"
    patch = difference(*CODE)
    assert b"GIT binary patch" in patch
    assert b"params.yaml" not in patch
    git(here, "config", "diff.noprefix", "true")
    git(here, "config", "diff.external", "echo")
    assert difference(*CODE) == patch
