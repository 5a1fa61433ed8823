"""Two nodes, rehearsed as two torchrun agents on loopback that share a folder: a node lost, and the host lost."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import yaml
from agents import PATIENCE, Start, alive, children, listened_to, reached, running_agents, wait_for
from ports import free_port

from nmt.common import tensors
from nmt.training import checkpoint

MakeJob = Callable[..., dict[str, Any]]
UPDATES = 250


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setenv("WMT_NODES", "2")
    with running_agents() as start:
        yield start


def listening(pid: int) -> set[str]:
    """The addresses at which a process and its descendants wait for connections."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    assert len(processes) >= 3, "torchrun and two ranks"
    connections = [each for process in processes for each in process.net_connections("inet")]
    return {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}


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
    for name, minutes in (("undisturbed", 10.0), ("nodes", 0.0001)):
        (tmp_path / name).mkdir()
        job = tiny_job(updates=UPDATES, shards=4, resume_minutes=minutes)
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
    wait_for(lambda: reached(tmp_path / "undisturbed") > 0)
    assert listening(alone.pid) == {"127.0.0.1"}
    assert alone.wait(timeout=PATIENCE) == 0
    assert not list((tmp_path / "undisturbed").glob(".*"))
    weights = [final_weights(tmp_path / name) for name in ("undisturbed", "nodes")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
