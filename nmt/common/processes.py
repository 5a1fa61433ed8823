"""A process that ends when the one that started it does, however that ended."""

from __future__ import annotations

import ctypes
import os
import signal
import sys


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Ask the system to send this process a signal when the one that started it dies, however it dies. Linux only.

    It is the thread that counts: start such a process from one that lives as long as it should.
    """
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        parent = os.getppid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os.kill(os.getpid(), number)
