"""What travels into a run's copy of the repository, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from clones import ROOT, Clone

from nmt.config import InputError
from pipeline.runs import copies
from pipeline.runs.record import lock


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    folder = tmp_path / "original"
    folder.mkdir()
    return Clone(folder)


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_changes_of_tracked_files_travel_and_new_values_leave_the_comments(clone: Clone, tmp_path: Path) -> None:
    original = clone.folder
    module = original / "nmt/schedule.py"
    module.write_text(module.read_text() + "# Changed.\n")
    (original / "nmt/added.py").write_text("# Added.\n")
    (original / "nmt/untracked.py").write_text("# Not added.\n")
    (original / "LICENSE").unlink()
    git(original, "add", "nmt/added.py")
    # As users set them.
    git(original, "config", "diff.noprefix", "true")
    git(original, "config", "color.ui", "always")
    before = git(original, "status", "--porcelain")
    overrides = {"training": {"updates": 7}}
    copy = copies.make(original, tmp_path / "run", {"row": "big", "overrides": overrides})
    assert (copy / "nmt/schedule.py").read_text() == module.read_text()
    assert (copy / "nmt/added.py").exists()
    assert not (copy / "nmt/untracked.py").exists()
    assert not (copy / "LICENSE").exists()
    params = (copy / "params.yaml").read_text()
    assert "# base, big, a row of Table 3" in params
    again = copies.make(original, tmp_path / "run", {"row": "other"})
    assert again == copy
    assert (copy / "params.yaml").read_text() == params
    assert git(original, "status", "--porcelain") == before
    assert git(copy, "rev-parse", "HEAD") == git(original, "rev-parse", "HEAD")
    changed = [line for line in params.split("\n") if line not in (original / "params.yaml").read_text().split("\n")]
    assert [line.split("#")[0].split() for line in changed if line] == [
        ["row:", "big"],
        ["overrides:"],
        ["training:"],
        ["updates:", "7"],
    ]


def test_the_cache_is_shared_and_local_files_are_linked(clone: Clone, tmp_path: Path) -> None:
    text = tmp_path / "text.en"
    text.write_text("A line.\n")
    link = clone.folder / "data/local/mine/train.en"
    link.parent.mkdir(parents=True)
    link.symlink_to(text)
    copy = copies.make(clone.folder, tmp_path / "run", {})
    cache = subprocess.run(["dvc", "cache", "dir"], cwd=copy, check=True, capture_output=True, text=True).stdout
    assert cache.strip() == str(clone.folder / ".dvc/cache")
    assert (copy / "data/local/mine/train.en").read_text() == "A line.\n"
    assert git(copy, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("content", "refused"),
    [("extends: sample\n", "mine.yaml"), ("extends: sample\nchecksums: SUMS\nbase_url: http://h/\n", "mine.yaml")],
)
def test_a_catalog_that_git_does_not_track_is_refused(clone: Clone, tmp_path: Path, content: str, refused: str) -> None:
    path = clone.folder / "data/catalog/mine.yaml"
    path.write_text(content)
    with pytest.raises(InputError, match=rf"`git add data/catalog/{refused}`"):
        copies.make(clone.folder, tmp_path / "run", {"corpus": "mine"})
    git(clone.folder, "add", "data/catalog/mine.yaml")
    if "SUMS" in content:
        (clone.folder / "data/catalog/SUMS").write_text("")
        with pytest.raises(InputError, match="`git add data/catalog/SUMS`"):
            copies.make(clone.folder, tmp_path / "run", {"corpus": "mine"})
        git(clone.folder, "add", "data/catalog/SUMS")
    assert (copies.make(clone.folder, tmp_path / "run", {"corpus": "mine"}) / "data/catalog/mine.yaml").exists()


def test_a_folder_that_is_no_repository_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    with pytest.raises(InputError, match=r"no git repository with a commit, .* what git says: fatal: "):
        copies.make(folder, tmp_path / "run", {})


def test_old_copies_go_and_those_at_work_stay(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for number in range(copies.KEPT + 2):
        with lock(runs / str(number) / "lock"):
            (runs / str(number) / "repository").mkdir()
        time = 1_000_000_000 + number
        os.utime(runs / str(number), (time, time))
    with lock(runs / "0/lock"):
        os.utime(runs / "0", (1, 1))
        copies.clean(runs)
        assert sorted(path.name for path in runs.iterdir()) == ["0", *(str(n) for n in range(2, copies.KEPT + 2))]


def test_a_run_between_two_of_its_processes_keeps_its_copy(tmp_path: Path) -> None:
    """The process that runs DVC may have died; a retry starts another one in the same copy, up to minutes later."""
    runs = tmp_path / "runs"
    with copies.held(runs / "retried", "owner"):
        with copies.held(runs / "retried"):
            (runs / "retried/repository").mkdir()
        os.utime(runs / "retried", (1, 1))
        for number in range(copies.KEPT):
            with copies.held(runs / str(number)):
                pass
        copies.clean(runs)
        assert (runs / "retried/repository").exists()
    copies.clean(runs)
    assert not (runs / "retried").exists()


def test_a_process_that_waits_for_a_folder_under_removal_gets_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, order = tmp_path / "runs", list[str]()
    for number in range(copies.KEPT + 1):
        with copies.held(runs / str(number)):
            (runs / str(number) / "repository").mkdir()
        os.utime(runs / str(number), (number + 1, number + 1))

    def take() -> None:
        with copies.held(runs / "0"):
            order.append("taken")
            assert (runs / "0/lock").exists()
            assert not (runs / "0/repository").exists()

    threads = [threading.Thread(target=take) for _ in range(3)]
    remove = copies.remove

    def removing(folder: Path) -> None:
        for thread in threads:
            thread.start()
        # Time for them to find the folder, and to wait for its lock.
        threads[0].join(0.5)
        order.append("removed")
        remove(folder)

    monkeypatch.setattr(copies, "remove", removing)
    copies.clean(runs)
    for thread in threads:
        thread.join()
    assert order == ["removed", "taken", "taken", "taken"]
    assert sorted(path.name for path in runs.iterdir()) == ["0", "1", "2", "3"]


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    program = "import sys, time; from pathlib import Path; from pipeline.runs import copies\n"
    program += "with copies.held(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    command = [sys.executable, "-c", program, str(tmp_path / "run")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        process.kill()
    with copies.held(tmp_path / "run"):
        pass


def test_the_record_of_a_run_stays_when_its_copy_goes(tmp_path: Path) -> None:
    for name in ("repository/nmt", "status", "results"):
        (tmp_path / "run" / name).mkdir(parents=True)
    (tmp_path / "run/run.json").touch()
    (tmp_path / "run/log").touch()
    copies.remove(tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["log", "results", "run.json"]


def test_invalid_params_are_refused(clone: Clone, tmp_path: Path) -> None:
    params = clone.folder / "params.yaml"
    content = params.read_text()
    for wrong, why in (
        ("row: [", "is not valid YAML"),
        (content.replace("{}", "[1]"), r"overrides is \[1\]"),
        (content + "seed: 2\n", "`seed` is there twice"),
    ):
        params.write_text(wrong)
        with pytest.raises(InputError, match=rf"params\.yaml.* {why}"):
            copies.make(clone.folder, tmp_path / "run", {"overrides": {"model": {"N": 1}}})
    assert not copies.repository(tmp_path / "run").exists()
