"""torchrun's agents, one a node, as processes of this machine: started as the launcher does on a node."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nmt.common import processes
from nmt.training.history import read_history
from pipeline.train import launch

Start = Callable[[Path, int], subprocess.Popen[bytes]]
PATIENCE = 200
"""Seconds that one step of a rehearsal may take on a busy machine."""
ROOT = Path(__file__).resolve().parents[1]


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


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not true after {PATIENCE} seconds"
        time.sleep(0.05)


def listened_to(port: int) -> bool:
    """Whether a process of this machine waits for connections at a port."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return any(fields[1].endswith(f":{port:04X}") and fields[3] == "0A" for fields in lines)


def reached(folder: Path) -> int:
    return max((int(record["update"]) for record in read_history(folder / "history.jsonl")), default=0)
