"""Processes that end when the one that started them is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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
@pytest.mark.parametrize(("number", "told"), [(signal.SIGTERM, "asked\n"), (signal.SIGKILL, "")])
def test_a_killed_parent_is_followed(number: signal.Signals, told: str) -> None:
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
        assert parent.stdout.read() == told
        assert time.monotonic() - started < 60
