"""Processes that end when the one that started them is killed."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from nmt.common.processes import end, sharing, start, wait_for_sharers

# One long sleep would delay a signal that comes just before it.
CHILD = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("asked", flush=True), sys.exit()))
print("ready", flush=True)
while True:
    time.sleep(0.1)
"""
PARENT = """
import sys
from nmt.common.processes import start
start([sys.executable, "-c", sys.argv[1]]).wait()
"""
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("waited_for", [True, False])
def test_a_process_whose_ancestor_has_died_before_it_asks_ends(waited_for: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as dead:
        if waited_for:
            dead.wait()
        else:
            os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
        asks = f"from nmt.common.processes import *; die_with_parent(signal.SIGTERM, {dead.pid})"
        result = subprocess.run([sys.executable, "-c", asks], cwd=ROOT, capture_output=True, check=False)
    assert (result.returncode, result.stderr) == (-signal.SIGTERM, b"")


def test_a_killed_parent_is_followed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with parent.stdout:
        assert parent.stdout.readline() == "ready\n"
        parent.kill()
        parent.wait()
        started = time.monotonic()
        # The pipe ends when the child, which holds it too, has ended.
        assert parent.stdout.read() == "asked\n"
        assert time.monotonic() - started < 60


LEADER = """
import signal, subprocess, sys, time
handlers = {"asked": lambda *_: sys.exit(3), "left": signal.SIG_DFL, "deaf": signal.SIG_IGN}
signal.signal(signal.SIGTERM, handlers[sys.argv[1]])
subprocess.Popen([sys.executable, "-c", sys.argv[2]])
while True:
    time.sleep(0.1)
"""
SLOW = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), print("saved", flush=True), os._exit(0)))
print(os.getpid(), flush=True)
while True:
    time.sleep(0.1)
"""


@pytest.mark.parametrize(
    ("leader", "grace", "status", "output"),
    [("asked", 60, 3, b"saved\n"), ("left", 60, -signal.SIGTERM, b"saved\n"), ("deaf", 0.1, -signal.SIGKILL, b"")],
)
def test_a_group_ends_when_its_last_process_does(leader: str, grace: float, status: int, output: bytes) -> None:
    """Also one whose leader has not waited for it."""
    process = start([sys.executable, "-c", LEADER, leader, SLOW], stdout=subprocess.PIPE)
    with process.stdout as lines:
        child = int(lines.readline())
        assert os.getpgid(child) == process.pid != os.getpgid(0)
        assert end(process, grace) == status
        assert lines.read() == output
    with suppress(FileNotFoundError, ProcessLookupError):  # It may go while it is read of.
        assert "Z" in Path(f"/proc/{child}/stat").read_text()
    assert end(process, grace) == status


def test_who_shares_a_file_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lock"
    program = (
        "import sys; from pathlib import Path; from nmt.common.processes import sharing\n"
        "with sharing(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(path)]
    wait_for_sharers(path, "nobody is there")
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        with sharing(path):
            pass
        with ThreadPoolExecutor(1) as pool:
            waited = pool.submit(wait_for_sharers, path, "waiting for another")
            time.sleep(0.3)
            assert not waited.done()
            other.kill()
            waited.result(60)
    assert capsys.readouterr().err == "waiting for another\n"
