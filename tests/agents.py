"""torchrun's agents as processes of this machine, started as the launcher does on a node; waiting for processes."""

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import psutil
from clones import ROOT

from nmt.common import processes
from pipeline.trainings import launch

Found = TypeVar("Found")
Start = Callable[[Path, int], subprocess.Popen[bytes]]
PATIENCE = 240.0  # seconds that one step may take on a busy machine


@contextmanager
def running_agents() -> Iterator[Start]:
    """Starts an agent with so many processes on the job in a folder; what still runs at the end is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start(folder: Path, count: int) -> subprocess.Popen[bytes]:
        environment = {**launch.environment(count), "PYTHONPATH": str(ROOT)}
        process = processes.start(launch.command(count, folder), env=environment, cwd=ROOT)
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            processes.end(process, 0.0)


def until(find: Callable[[], Found | None], what: str, patience: float = PATIENCE, every: float = 0.5) -> Found:
    """What `find` finds, which it may take a while to; it is called again after `every` seconds."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        result = find()
        if result:
            return result
        time.sleep(every)
    raise AssertionError(f"waited {patience:.0f} s in vain for {what}")


def wait_for(condition: Callable[[], object]) -> None:
    until(condition, "a condition", every=0.05)


def is_over(process: psutil.Process) -> bool:
    """Whether a process has ended, waited for or not; it may end between two questions."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def family(pid: int) -> list[psutil.Process]:
    """A process and its descendants."""
    return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]


def listening(processes: list[psutil.Process]) -> set[tuple[str, int]]:
    """The addresses and ports at which they wait for connections."""
    addresses = set()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            connections = process.net_connections("inet")
            addresses |= {tuple(each.laddr) for each in connections if each.status == psutil.CONN_LISTEN}
    return addresses


def reached(folder: Path) -> int:
    from nmt.training.history import read_history  # It imports torch, as each of test_blocks.py's workers would.

    return max((int(record["update"]) for record in read_history(folder / "history.jsonl")), default=0)
