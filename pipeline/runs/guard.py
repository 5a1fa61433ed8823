"""Run a Python module, and end it with all its descendants when the process that started the guard is gone.

`python -m pipeline.runs.guard SECONDS MODULE ARGUMENTS..` runs `python -m MODULE ARGUMENTS..`. When standard input
closes, for whatever reason, the module gets SIGTERM, and what still runs after SECONDS gets SIGKILL. SIGTERM to the
guard sends SIGKILL to all of them at once. The exit status is the module's.
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
    """Make descendants whose parents die children of this process. Linux only."""
    if sys.platform == "linux":
        PR_SET_CHILD_SUBREAPER = 36
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_children(grace: float, hurried: Callable[[], bool] = lambda: False) -> None:
    """Send SIGTERM to every child, wait, and SIGKILL what still runs after `grace` seconds or once `hurried`."""
    own, terminated = psutil.Process(), set[psutil.Process]()
    deadline = time.monotonic() + grace
    # Orphans of a child that ended become children of this process and get SIGTERM in the next round.
    while (children := own.children()) and time.monotonic() < deadline and not hurried():
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                if child not in terminated:
                    child.terminate()
        terminated.update(children)
        psutil.wait_procs(children, timeout=POLL)
    # A process may start another one between the listing and the signal.
    while children := own.children(recursive=True):
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(children, timeout=POLL)


class Guard:
    """A module's process and its descendants."""

    def __init__(self, module: list[str]) -> None:
        self.hurried = False
        signal.signal(signal.SIGTERM, self._hurry)
        # A shell makes its background commands ignore SIGINT, and the module would inherit that; SIGINT ends Prefect's
        # worker.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        adopt_orphans()
        self.process = subprocess.Popen(
            [sys.executable, "-m", *module],
            stdin=subprocess.DEVNULL,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - this process has one thread
        )

    def _hurry(self, *_: object) -> None:
        self.hurried = True

    def wait(self) -> int | None:
        """Return the module's exit status once it has ended, or None once it has to end."""
        while not self.hurried and not select.select([0], [], [], POLL)[0]:
            with contextlib.suppress(ChildProcessError):
                # Also reap orphans that ended: they would stay as zombies.
                while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                    if ended[0] == self.process.pid:
                        self.process.returncode = os.waitstatus_to_exitcode(ended[1])
                        return self.process.returncode
        return None


def main() -> int:
    """Run the guard."""
    guard = Guard(sys.argv[2:])
    status = guard.wait()
    end_children(float(sys.argv[1]), lambda: guard.hurried)
    return 0 if status is None else status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
