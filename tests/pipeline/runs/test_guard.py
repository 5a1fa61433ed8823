"""A module under guard ends with everything that it started, whatever ends the guard or who asked for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from orchestra import until

ROOT = Path(__file__).resolve().parents[3]
MODULE = """
import os, signal, subprocess, sys, time
role, on_sigterm = sys.argv[1:]
signal.signal(signal.SIGTERM, eval(on_sigterm))
if role == "module":
    subprocess.Popen([sys.executable, __file__, "child", on_sigterm], start_new_session=True)
with open(role, "w") as file:
    file.write(f"{os.getpid()}\\n")
time.sleep(600)
"""


def guarded(
    folder: Path, on_sigterm: str, seconds: float, number: int = signal.SIGTERM
) -> tuple[subprocess.Popen[bytes], list[int]]:
    """A guard, and the processes below it: a module and its child in another session, both with that handler."""
    (folder / "module.py").write_text(MODULE)
    command = [
        sys.executable,
        "-m",
        "pipeline.runs.guard",
        str(seconds),
        str(int(number)),
        "module",
        "module",
        on_sigterm,
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    guard = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.PIPE, start_new_session=True)
    files = [folder / "module", folder / "child"]
    until(lambda: all(file.exists() and file.read_text().endswith("\n") for file in files), "the processes", 60)
    return guard, [int(file.read_text()) for file in files]


def are_gone(pids: list[int]) -> bool:
    return not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids)


def close(guard: subprocess.Popen[bytes]) -> None:
    assert guard.stdin is not None
    guard.stdin.close()


def interrupt(guard: subprocess.Popen[bytes]) -> None:
    guard.send_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("on_sigterm", "seconds", "end", "status"),
    [
        ("lambda *_: os._exit(0)", 600, close, 0),
        ("lambda *_: os._exit(0)", 600, interrupt, 130),
        ("signal.SIG_IGN", 0.5, close, 0),
        ("signal.SIG_IGN", 600, subprocess.Popen.terminate, 143),
    ],
    ids=["asked", "interrupted", "killed after a while", "killed at once"],
)
def test_all_end_when_the_guard_is_asked(
    tmp_path: Path, on_sigterm: str, seconds: float, end: Callable[[subprocess.Popen[bytes]], None], status: int
) -> None:
    guard, pids = guarded(tmp_path, on_sigterm, seconds)
    end(guard)
    assert guard.wait(timeout=240) == status
    assert are_gone(pids)
    close(guard)


def test_a_module_that_must_not_end_by_itself_is_killed_and_its_children_are_asked(tmp_path: Path) -> None:
    handler = "lambda *_: (open(role + '.asked', 'w').close(), os._exit(0))"
    guard, pids = guarded(tmp_path, handler, 600, signal.SIGKILL)
    close(guard)
    guard.wait(timeout=240)
    assert are_gone(pids)
    assert [path.name for path in tmp_path.glob("*.asked")] == ["child.asked"]


def test_a_guard_that_is_in_a_hurry_later_kills(tmp_path: Path) -> None:
    guard, pids = guarded(tmp_path, "signal.SIG_IGN", 600)
    close(guard)
    with pytest.raises(subprocess.TimeoutExpired):
        guard.wait(timeout=1)
    guard.terminate()
    guard.wait(timeout=240)
    assert are_gone(pids)


def test_a_killed_guard_takes_its_module_along(tmp_path: Path) -> None:
    guard, (module, *others) = guarded(tmp_path, "signal.SIG_IGN", 600)
    guard.kill()
    guard.wait()
    until(lambda: are_gone([module]), "the end of the module")
    for pid in others:
        os.kill(pid, signal.SIGKILL)
    close(guard)


def test_the_status_is_the_modules_and_what_it_leaves_ends(tmp_path: Path) -> None:
    guard, (module, *others) = guarded(tmp_path, "lambda *_: os._exit(0)", 600)
    os.kill(module, signal.SIGKILL)
    assert guard.wait(timeout=240) == 128 + signal.SIGKILL
    assert are_gone(others)
    close(guard)
