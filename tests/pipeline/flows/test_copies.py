"""What travels into a copy of the repository, what runs there, and what is left of it."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

import psutil
import pytest
from agents import is_over
from clones import ROOT, commit, git
from filelock import FileLock
from refusals import check_refusal

from pipeline.flows import copies


@pytest.fixture
def original(tmp_path: Path) -> Path:
    folder = tmp_path / "original"
    names = [".dvc/.gitignore", ".dvc/config", ".gitignore", "data/local/.gitignore"]
    for name in (*names, "data/catalog/sample.yaml", "params.yaml", "LICENSE"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    commit(folder)
    return folder


def left(original: Path) -> list[str]:
    return [path.name for path in (original / "work/copies").iterdir()]


def test_changes_travel_and_new_values_leave_the_comments(original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (original / "LICENSE").write_text("changed\n")
    (original / "added").write_text("added\n")
    (original / "untracked").write_text("not added\n")
    (original / "data/local/.gitignore").unlink()
    git(original, "add", "added")
    git(original, "config", "diff.noprefix", "true")
    git(original, "config", "color.ui", "always")
    config = original.parent / "xdg/git/config"
    config.parent.mkdir(parents=True)
    config.write_text('[clone]\n\tdefaultRemoteName = upstream\n[protocol "file"]\n\tallow = never\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(original.parent / "xdg"))
    monkeypatch.setenv("HOME", str(original.parent))
    before = git(original, "status", "--porcelain")
    with copies.made(original, "one", {"row": "big", "overrides": {"training": {"updates": 7}}}) as copy:
        assert (copy / "LICENSE").read_text() == "changed\n"
        left_out = [name for name in ("added", "untracked", "data/local/.gitignore") if not (copy / name).exists()]
        assert left_out == ["untracked", "data/local/.gitignore"]
        params = (copy / "params.yaml").read_text()
        assert git(copy, "rev-parse", "HEAD") == git(original, "rev-parse", "HEAD")
        assert git(copy, "remote") == "origin\n"
        # The first one is at work, and another run begins and ends.
        with copies.made(original, "two", {}) as other:
            assert "row: big" not in (other / "params.yaml").read_text()
            assert copy.exists()
            monkeypatch.setattr(copies, "WAIT", 0.1)
            check_refusal("^one is at work already", copies.made(original, "one", {}).__enter__)
        assert copy.exists()
    assert left(original) == []
    assert git(original, "status", "--porcelain") == before
    assert "# base, big, a row of Table 3" in params
    unchanged = (original / "params.yaml").read_text().split("\n")
    changed = [line.split("#")[0].strip() for line in params.split("\n") if line and line not in unchanged]
    assert changed == ["row: big", "overrides:", "training:", "updates: 7"]


def test_text_and_tracking_are_the_originals(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cache and its state root, too: tests/end_to_end/test_flows.py."""
    (tmp_path / "text.en").write_text("A line.\n")
    (original / "data/local/mine").mkdir(parents=True)
    (original / "data/local/mine/train.en").symlink_to(tmp_path / "text.en")
    catalog = original / "data/catalog/mine.yaml"
    catalog.write_text("extends: sample\n")
    with copies.made(original, "one", {}) as copy:
        catalog.write_text("extends: edited\n")
        assert (copy / "data/catalog/mine.yaml").read_text() == "extends: sample\n"
        assert (copy / "data/local/mine/train.en").read_text() == "A line.\n"
        said: list[str] = []
        monkeypatch.chdir(original)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///own.db")
        program = "from pipeline.tracking import server; print(server.uri(), server.state_root())"
        assert copies.run(copy, [sys.executable, "-c", program], said.append) == 0
        assert said == [f"sqlite:///{original}/own.db {original}/work"]
        assert git(copy, "status", "--porcelain") == "?? data/catalog/mine.yaml\n"


PROGRAM = """
import os, signal, subprocess, sys, time
def say(line):  # in one write: two processes share the pipe
    os.write(1, (line + "\\n").encode(sys.stdout.encoding))
if len(sys.argv) == 1:
    child = subprocess.Popen([sys.executable, __file__, "child"])
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), say(f"saved {sys.argv[1:]}"), os._exit(0)))
say(os.environ["DVC_EXP_NAME"] + " \\xfc")
while True:
    time.sleep(0.1)
"""


def test_what_interrupts_a_command_first_ends_all_of_its_processes(original: Path) -> None:
    said: list[str] = []

    def tick() -> None:
        if len(said) == 2:
            raise KeyboardInterrupt

    with copies.made(original, "one", {}) as copy:
        (copy / "program.py").write_text(PROGRAM)
        with pytest.raises(KeyboardInterrupt):
            copies.run(copy, [sys.executable, "program.py"], said.append, tick)
        assert said[:2] == ["one \xfc"] * 2
        assert sorted(said[2:]) == ["saved ['child']", "saved []"]
        assert copies.run(copy, [sys.executable, "-c", "print(1); print(2, end=''); exit(3)"], said.append) == 3
        assert said[4:] == ["1", "2"]


def test_a_killed_owner_leaves_its_copy_to_the_next_run(original: Path) -> None:
    """Once the processes in the copy have ended, which may take a while to save their state."""
    program = (
        "import sys; from pathlib import Path; from pipeline.flows import copies\n"
        "with copies.made(Path.cwd(), 'one', {}) as copy:\n"
        "    (copy / 'program.py').write_text(sys.argv[1])\n"
        "    copies.run(copy, [sys.executable, 'program.py', 'leader'], lambda line: print(line, flush=True))\n"
    )
    slow = PROGRAM.replace("sleep(0.5)", "sleep(3)")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program, slow]
    with subprocess.Popen(command, cwd=original, env=environment, stdout=subprocess.PIPE) as owner:
        assert owner.stdout.readline() == b"one \xc3\xbc\n"
        (leader,) = psutil.Process(owner.pid).children()
        owner.send_signal(signal.SIGKILL)
    copy = original / "work/copies/one"
    with copies.made(original, "two", {}):
        assert copy.exists() or is_over(leader)
    started = time.monotonic()
    with copies.made(original, "one", {}):
        assert is_over(leader)
        assert not (copy / "program.py").exists()
        assert copy.with_suffix(".lock").exists()
    assert time.monotonic() - started < 60
    assert left(original) == []


@pytest.mark.parametrize("ran", [False, True])
def test_a_copy_in_which_nothing_runs_is_removed(original: Path, ran: bool) -> None:
    folder = original / "work/copies/one/.dvc/tmp"
    folder.mkdir(parents=True)
    if ran:
        (folder / "printed").touch()
    with copies.made(original, "one", {}) as copy:
        assert (copy / "params.yaml").exists()


def test_a_copy_that_another_run_removes_is_waited_for(original: Path) -> None:
    """And a lock that an earlier version left is no copy's."""
    folder = original / "work/copies"
    folder.mkdir(parents=True)
    (folder / ".lock").touch()
    other = FileLock(folder / "one.lock", thread_local=False)
    other.acquire()
    threading.Timer(1.0, other.release).start()
    with copies.made(original, "one", {}) as copy:
        assert not other.is_locked
        assert (copy / "params.yaml").exists()
    assert left(original) == [".lock"]


def test_the_lock_of_a_command_is_one_of_network_file_systems(original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: IO[bytes] | int, how: int) -> None:
        assert how & fcntl.LOCK_UN or fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR

    monkeypatch.setattr(fcntl, "flock", flock)
    with copies.made(original, "one", {}) as copy:
        assert copies.run(copy, [sys.executable, "-c", ""], print) == 0


def test_a_run_without_its_last_stage_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[str] = []
    monkeypatch.setattr(copies, "run", lambda copy, command, log: commands.append(" ".join(command[2:4])) or 0)
    copies.save(tmp_path, ["score"], print)
    (tmp_path / "results").mkdir()
    (tmp_path / "results/report.md").touch()
    copies.save(tmp_path, [], print)
    assert commands == ["dvc exp", "dvc exp", "pipeline.cli publish", "dvc exp", "dvc exp"]


def test_what_cannot_be_copied_is_refused(original: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    git(plain, "init", "--quiet")
    with pytest.raises(ChildProcessError, match=r"git rev-parse in .*: fatal: "), copies.made(plain, "one", {}):
        pass
    params = original / "params.yaml"
    params.write_text(params.read_text().replace("{}", "[1]"))
    changed = copies.made(original, "one", {"overrides": {"model": {"N": 1}}})
    check_refusal(r"params\.yaml.* overrides is \[1\]", changed.__enter__)
    assert left(original) == []
