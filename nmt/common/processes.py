"""Processes: they end with their parent, are waited for by a shared lock, and have a status when interrupted."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

INTERRUPTED = 75
"""The exit status of a process that was stopped and can be resumed (sysexits' EX_TEMPFAIL)."""
UNRECORDED = 73
"""The exit status of a training process that failed and could not write why (sysexits' EX_CANTCREAT)."""
TRAINERS = "trainers.lock"
"""The file in a training's folder that all of its processes hold by `sharing`."""


def die_with_parent(number: signal.Signals = signal.SIGKILL, ancestor: int | None = None) -> None:
    """Have the kernel send this process a signal when its parent dies, for any reason. Linux only.

    The signal comes when the parent's thread that started this process ends: that thread must live long enough.
    `ancestor`: the id of a process that this one must not outlive. If it is dead already, the signal comes at once:
    the parent may have died before this call.
    """
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        parent = os.getppid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent or (ancestor is not None and _is_dead(ancestor)):
            os.kill(os.getpid(), number)


def _is_dead(process: int) -> bool:
    """Return whether a process has ended, waited for or not."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return status.rpartition(")")[2].split()[0] in "ZX"


@contextmanager
def sharing(path: Path) -> Iterator[None]:
    """Hold `path` as a shared lock, as other processes may do at the same time; the system releases it at any end.

    Where the disk has no locks it is not held.
    """
    import fcntl

    with path.open("a+") as file:  # Network file systems want a file that can be read for this lock.
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_SH)
        yield


def is_held(path: Path) -> bool:
    """Return whether a process holds a lock on `path`, by `sharing` or alone."""
    import fcntl

    with suppress(FileNotFoundError), path.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def wait_for_sharers(path: Path, message: str) -> None:
    """Wait until no process holds `path` by `sharing`; print `message` if there is one."""
    import fcntl

    with path.open("a+") as file, suppress(OSError):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(message, file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
