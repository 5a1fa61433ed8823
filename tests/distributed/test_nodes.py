"""Two nodes, rehearsed as two torchrun agents on loopback that share a folder: a node lost, and the host lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import yaml

from nmt.common import tensors
from nmt.training import checkpoint
from nmt.training.history import read_history
from pipeline.training import launch

Start = Callable[[Path, int], subprocess.Popen[bytes]]
MakeJob = Callable[..., dict[str, Any]]
UPDATES = 600
PATIENCE = 200
"""Seconds that one step of the rehearsal may take on a busy machine."""
ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts torchrun as the launcher does on a node; whatever still runs at the end is killed."""
    started: list[subprocess.Popen[bytes]] = []
    monkeypatch.setenv("WMT_NODES", "2")

    def start(folder: Path, count: int) -> subprocess.Popen[bytes]:
        environment = {**launch.environment(count), "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(launch.command(count, folder), env=environment, cwd=ROOT, start_new_session=True)
        started.append(process)
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


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


def listening(pid: int) -> set[str]:
    """The addresses at which a process and its descendants wait for connections."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    assert len(processes) >= 3, "torchrun and two ranks"
    connections = [each for process in processes for each in process.net_connections("inet")]
    return {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}


def listened_to(port: int) -> bool:
    """Whether a process of this machine waits for connections at a port."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return any(fields[1].endswith(f":{port:04X}") and fields[3] == "0A" for fields in lines)


def reached(folder: Path) -> int:
    return max((int(record["update"]) for record in read_history(folder / "history.jsonl")), default=0)


def final_weights(folder: Path) -> dict[str, torch.Tensor]:
    path = checkpoint.latest_resume(folder / "resume")
    assert path is not None
    return tensors.load_tensors(path / tensors.WEIGHTS)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.timeout(1800)
def test_a_lost_node_is_replaced_and_a_lost_host_ends_both_sides(
    tmp_path: Path,
    tiny_job: MakeJob,
    agents: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = tiny_job(updates=UPDATES, resume_minutes=0.0001)
    for name in ("undisturbed", "nodes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "job.yaml").write_text(yaml.safe_dump(job))
    folder = tmp_path / "nodes"
    port = free_port()
    monkeypatch.setenv("WMT_RENDEZVOUS", f"127.0.0.1:{port}")
    host = agents(folder, 1)
    wait_for(lambda: listened_to(port))  # who comes first hosts the rendezvous
    other = agents(folder, 1)
    wait_for(lambda: checkpoint.latest_resume(folder / "resume") is not None)

    workers = children(other.pid)
    assert workers
    other.kill()
    wait_for(lambda: not any(map(alive, workers)))
    before = reached(folder)
    assert 0 < before < UPDATES
    replacement = agents(folder, 1)
    wait_for(lambda: reached(folder) > before + 30)
    assert host.poll() is None

    workers = children(host.pid)
    host.kill()
    wait_for(lambda: not any(map(alive, workers)))
    assert replacement.wait(timeout=PATIENCE) != 0
    before = reached(folder)
    assert before < UPDATES
    assert not (folder / "failed.json").exists(), "a lost node was taken for a fault"

    monkeypatch.setenv("WMT_RENDEZVOUS", f"127.0.0.1:{free_port()}")
    both = [agents(folder, 1), agents(folder, 1)]
    assert [process.wait(timeout=PATIENCE) for process in both] == [0, 0]
    assert json.loads((folder / "done.json").read_text())["resumes"] >= 2

    monkeypatch.setenv("WMT_NODES", "1")
    alone = agents(tmp_path / "undisturbed", 2)
    wait_for(lambda: checkpoint.latest_resume(tmp_path / "undisturbed/resume") is not None)
    assert listening(alone.pid) == {"127.0.0.1"}
    assert alone.wait(timeout=PATIENCE) == 0
    assert not list((tmp_path / "undisturbed").glob(".*"))
    weights = [final_weights(tmp_path / name) for name in ("undisturbed", "nodes")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
