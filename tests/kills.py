"""Children that are killed at a chosen one of the calls by which they change files: before it or amid it.

After a call the disk is as before the next one.
"""

import builtins
import io
import itertools
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

CHANGES = ("replace", "rename", "unlink", "remove", "rmdir", "mkdir", "link", "fsync", "sendfile", "utime", "chmod")
"""Functions of os that change what is on the disk. `open` does where it opens for writing."""
FOR_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Fatal:
    """Counts this process' calls that change files, and kills it at the chosen point."""

    def __init__(self, at: int, report: int) -> None:
        self.left, self.report = at, report

    def point(self, what: str, half: Callable[[], object] | None = None) -> None:
        """A point at which a kill leaves the disk as no other does; `half` is done where it comes amid a call."""
        self.left -= 1
        if self.left == 0:
            if half is not None:
                half()
            os.write(self.report, what.encode())
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, after a point."""

        def around(*given: Any, **named: Any) -> Any:
            self.point(f"before {name}")
            return call(*given, **named)

        return around

    def install(self) -> None:
        """Count in this process from here on; there is no way back."""
        fatal, opened, system_open = self, io.open, os.open

        class File(io.FileIO):
            def write(self, data: Any) -> Any:
                fatal.point("before write")
                fatal.point("amid write", lambda: super(File, self).write(bytes(data)[: len(data) // 2]))
                return super().write(data)

        def counted_open(file: Any, mode: str = "r", buffering: int = -1, *given: Any, **named: Any) -> Any:
            if not set(mode) & set("wax"):
                return opened(file, mode, buffering, *given, **named)
            fatal.point("before open")
            buffered = io.BufferedWriter(File(file, mode.replace("b", "").replace("t", "")))
            return buffered if "b" in mode else io.TextIOWrapper(buffered, *given, **named)

        def counted_system_open(path: Any, flags: int, *given: Any, **named: Any) -> int:
            around = fatal.counted("open", system_open) if flags & FOR_WRITING else system_open
            return int(around(path, flags, *given, **named))

        for name in CHANGES:
            setattr(os, name, self.counted(name, getattr(os, name)))
        os.open = counted_system_open
        io.open = builtins.open = counted_open


def begin(action: Callable[[], object], at: int = 0) -> tuple[int, int]:
    """Fork a child that does `action` and is killed at its `at`-th point; its process, and where it says which."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of the threads of whoever runs the tests: the child touches nothing of theirs.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if process == 0:
        status = 1
        try:
            os.close(read)
            Fatal(at, write).install()
            action()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(write)
    return process, read


def end(process: int, read: int) -> tuple[int, str]:
    """Wait for a child of `begin`; its exit status, and at which point it was killed."""
    with os.fdopen(read) as report:
        point = report.read()
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), point


def killed(action: Callable[[], object], at: int) -> str | None:
    """Do `action` in a child that is killed at its `at`-th point: which that was, None where it ended before."""
    status, point = end(*begin(action, at))
    assert status == (-signal.SIGKILL if point else 0), f"the child of point {at} ({point}) ended with {status}"
    return point or None


def every_kill(make_action: Callable[[int], Callable[[], object]], step: int = 1) -> Iterator[tuple[int, str]]:
    """Kill the actions that `make_action` makes (of their numbers, from 1 on) at every `step`-th point in turn."""
    for at in itertools.count(1, step):
        point = killed(make_action(at), at)
        if point is None:
            return
        yield at, point
