"""Processes that end when the one that started them is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nmt.common.processes import sharing, wait_for_sharers

CHILD = """
import signal, sys, time
from nmt.common.processes import die_with_parent
signal.signal(signal.SIGTERM, lambda *_: (print("asked", flush=True), sys.exit()))
die_with_parent(signal.Signals(int(sys.argv[1])))
print("ready", flush=True)
time.sleep(100)
"""
PARENT = """
import subprocess, sys
subprocess.run([sys.executable, "-c", *sys.argv[1:]])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone sends a signal when a parent dies")
@pytest.mark.parametrize("waited_for", [True, False])
def test_a_launcher_whose_parent_died_while_it_started_does_not_train(tmp_path: Path, waited_for: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as dead:
        if waited_for:
            dead.wait()
        else:
            os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
        command = [sys.executable, "-m", "pipeline.training.launch", "this", "1", str(tmp_path), str(dead.pid)]
        root = Path(__file__).resolve().parents[3]
        result = subprocess.run(command, cwd=root, capture_output=True, check=False)
    assert (result.returncode, result.stderr) == (-signal.SIGTERM, b"")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone sends a signal when a parent dies")
@pytest.mark.parametrize(("number", "output"), [(signal.SIGTERM, "asked\n"), (signal.SIGKILL, "")])
def test_a_killed_parent_is_followed(number: signal.Signals, output: str) -> None:
    root = Path(__file__).resolve().parents[3]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD, str(int(number))], cwd=root, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent.stdout:
        assert parent.stdout.readline() == "ready\n"
        parent.kill()
        parent.wait()
        started = time.monotonic()
        # The pipe ends when the child, which holds it too, has ended.
        assert parent.stdout.read() == output
        assert time.monotonic() - started < 60


def test_who_shares_a_file_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lock"
    program = (
        "import sys; from pathlib import Path; from nmt.common.processes import sharing\n"
        "with sharing(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(path)]
    root = Path(__file__).resolve().parents[3]
    wait_for_sharers(path, "nobody is there")
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
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
