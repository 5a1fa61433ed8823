"""Run a Python module, and end it with all its descendants when the process that started it is gone.

`python -m pipeline.runs.guard SECONDS SIGNAL MODULE ARGUMENTS..` runs `python -m MODULE ARGUMENTS..`. When standard
input closes, for any reason, the module gets SIGNAL (a number). Then its remaining descendants get SIGTERM, and SIGKILL
after SECONDS. SIGINT to this process does the same as closing its standard input; SIGTERM sends SIGKILL to all of them
at once. The exit status is the module's, or 128 and the signal's number, or 0 for a closed input.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import psutil

from nmt.common.processes import die_with_parent

POLL = 0.2
"""Seconds between two checks of the children."""


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent dies. Linux only."""
    if sys.platform == "linux":
        PR_SET_CHILD_SUBREAPER = 36
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_children(grace: float, hurried: Callable[[], bool] = lambda: False) -> None:
    """Send SIGTERM to every child once, and SIGKILL to all descendants after `grace` seconds or once `hurried`."""
    own, signalled = psutil.Process(), set[psutil.Process]()
    deadline = time.monotonic() + grace
    # When a child ends, its own children become children of this process and get SIGTERM in the next round.
    while (children := own.children()) and time.monotonic() < deadline and not hurried():
        for child in set(children) - signalled:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.terminate()
        signalled.update(children)
        psutil.wait_procs(children, timeout=POLL)
    # A process may start another between the listing and the signal.
    while children := own.children(recursive=True):
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(children, timeout=POLL)


def main() -> int:
    """Run the process."""
    grace, ending, *module = sys.argv[1:]
    received = 0

    def end(number: int, _: object) -> None:
        nonlocal received
        received = max(received, number)

    # A shell's background commands ignore SIGINT and pass that on; a handler is not passed on.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, end)
    adopt_orphans()
    process = subprocess.Popen(
        [sys.executable, "-m", *module],
        stdin=subprocess.DEVNULL,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - this process has one thread
    )
    while process.returncode is None and not received and not select.select([0], [], [], POLL)[0]:
        with contextlib.suppress(ChildProcessError):
            # Adopted orphans that ended are waited for too; they would stay as zombies.
            while (child := os.waitpid(-1, os.WNOHANG))[0]:
                if child[0] == process.pid:
                    process.returncode = os.waitstatus_to_exitcode(child[1])
    status = process.returncode
    process.send_signal(int(ending))
    end_children(float(grace), lambda: received == signal.SIGTERM)
    if status is None:
        # A cluster that stops a pod must not take its work for done.
        return 128 + received if received else 0
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
