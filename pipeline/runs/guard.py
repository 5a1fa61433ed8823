"""Run a Python module, and end it with all its descendants when the process that asked for it is gone.

`python -m pipeline.runs.guard SECONDS MODULE ARGUMENTS..` runs `python -m MODULE ARGUMENTS..`. When standard input
closes, however that comes about, the module gets SIGTERM, and what is left after SECONDS gets SIGKILL. SIGTERM to this
process means SIGKILL to all of them at once. The exit status is the module's.
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
"""Seconds between two looks at the children."""


def adopt_orphans() -> None:
    """Have processes whose parents die become our children. Linux only."""
    if sys.platform == "linux":
        PR_SET_CHILD_SUBREAPER = 36
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_children(grace: float, hurried: Callable[[], bool] = lambda: False) -> None:
    """SIGTERM every child once, wait, and SIGKILL what is left of the tree after `grace` seconds or once `hurried`."""
    own, asked = psutil.Process(), set[psutil.Process]()
    deadline = time.monotonic() + grace
    # Orphans of a child that ended become our children: they are asked in their turn.
    while (children := own.children()) and time.monotonic() < deadline and not hurried():
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                if child not in asked:
                    child.terminate()
        asked.update(children)
        psutil.wait_procs(children, timeout=POLL)
    # A process may start another between the look and the signal.
    while children := own.children(recursive=True):
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(children, timeout=POLL)


class Guard:
    """A module's process and what it has left behind."""

    def __init__(self, module: list[str]) -> None:
        self.hurried = False
        signal.signal(signal.SIGTERM, self._hurry)
        # A shell has the commands that it starts in the background ignore SIGINT, and so would the module; Prefect's
        # worker ends by it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        adopt_orphans()
        self.process = subprocess.Popen(
            [sys.executable, "-m", *module], stdin=subprocess.DEVNULL,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - this process has one thread
        )  # fmt: skip

    def _hurry(self, *_: object) -> None:
        self.hurried = True

    def wait(self) -> int | None:
        """The module's exit status once it has ended; None when it is to end."""
        while not self.hurried and not select.select([0], [], [], POLL)[0]:
            with contextlib.suppress(ChildProcessError):
                # Orphans that ended are waited for, too, or they would stay as zombies.
                while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                    if ended[0] == self.process.pid:
                        self.process.returncode = os.waitstatus_to_exitcode(ended[1])
                        return self.process.returncode
        return None


def main() -> int:
    """The process."""
    guard = Guard(sys.argv[2:])
    status = guard.wait()
    end_children(float(sys.argv[1]), lambda: guard.hurried)
    return 0 if status is None else status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
