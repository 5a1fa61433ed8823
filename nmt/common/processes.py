"""Processes: they end with their parent and by groups, are waited for by a shared lock, and have exit statuses."""

import atexit
import ctypes
import fcntl
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

INTERRUPTED = 75  # the exit status of a process that was stopped and can be resumed (sysexits' EX_TEMPFAIL)
UNRECORDED = 73  # the exit status of a training process that failed and could not write why (sysexits' EX_CANTCREAT)
UNUSABLE = 70
"""The exit status of torchrun where the processes cannot start or meet the other nodes (sysexits' EX_SOFTWARE)."""
TRAINERS = "trainers.lock"  # the file in a training's folder that all of its processes hold by `sharing`
# Opened before any fork: another thread may hold the loader's lock at the fork, and the child would wait for ever.
_LIBC = ctypes.CDLL(None)


class Interrupted(Exception):
    """The stage was asked to stop. Its finished work stays, and the same command resumes it."""


def spare_imports() -> None:
    """Collect garbage more rarely and not at exit: torch's million objects cost a third of a short command's time."""
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a command as the leader of its own session and process group, with `options` of Popen.

    It gets SIGTERM when this process dies, and also when the thread that called this ends (Linux only).
    """
    bind = partial(die_with_parent, signal.SIGTERM, os.getpid())
    # `bind` makes system calls only: another thread may hold any lock at the fork.
    return subprocess.Popen(command, start_new_session=True, preexec_fn=bind, **options)  # noqa: PLW1509 - see above


def end(process: subprocess.Popen[bytes], grace: float) -> int:
    """End the process group of a process from `start`, and return the process' exit status.

    All processes of the group get SIGTERM, at most `grace` seconds to end, then SIGKILL. Those that lead sessions of
    their own are not in it: their parents end them.
    """
    deadline = time.monotonic() + grace
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        while not is_empty(process.pid) and (number == signal.SIGKILL or time.monotonic() < deadline):
            process.poll()
            time.sleep(0.05)
    return process.wait()


def is_empty(group: int) -> bool:
    """Return whether all processes of a group have ended, waited for or not."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):  # The second is what macOS says of a group of zombies.
        return True
    if sys.platform != "linux":
        return False
    # In a container whose first process waits for nobody, orphans stay as zombies.
    stats = (_stat(path.name) for path in Path("/proc").glob("[0-9]*"))
    return not any(group_of_process == group and state not in "ZX" for state, group_of_process in stats)


def die_with_parent(number: signal.Signals = signal.SIGKILL, ancestor: int | None = None) -> None:
    """Have the kernel send this process a signal when its parent dies, for any reason. Linux only.

    The signal comes when the parent's thread that started this process ends: that thread must live long enough.
    `ancestor`: the id of a process that this one must not outlive. If it is dead already, the signal comes at once:
    the parent may have died before this call.
    """
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        parent = os.getppid()
        _LIBC.prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent or (ancestor is not None and _stat(ancestor)[0] in "ZX"):
            os.kill(os.getpid(), number)


def _stat(process: int | str) -> tuple[str, int]:
    """Return the state and the group of a process on Linux; X and 0 if it is gone. Z and X are states of dead ones."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "X", 0
    state, _, group = status.rpartition(")")[2].split()[:3]
    return state, int(group)


@contextmanager
def sharing(path: Path) -> Iterator[None]:
    """Hold `path` as a shared lock, if the disk has locks; the system releases it however this process ends."""
    with path.open("a+") as file:  # Network file systems want a file that can be read for this lock.
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_SH)
        yield


def is_held(path: Path) -> bool:
    """Return whether a process holds a lock on `path`, by `sharing` or alone."""
    with suppress(FileNotFoundError), path.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:  # or the disk has no locks
            return isinstance(error, BlockingIOError)
    return False


def wait_for_sharers(path: Path, message: str) -> None:
    """Wait until no process holds `path` by `sharing`; print `message` if there is one."""
    with path.open("a+") as file, suppress(OSError):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(message, file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
