"""Child processes that end with their parent, and the exit status of an interrupted one."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

INTERRUPTED = 75
"""The exit status of a process that was stopped and can be resumed (sysexits' EX_TEMPFAIL)."""
TRAINERS = "trainers.lock"
"""The file in a training's folder that all of its processes hold by `nmt.common.files.sharing`."""


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
