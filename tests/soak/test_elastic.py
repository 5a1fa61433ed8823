"""Machines that are lost and not replaced: the training goes on with those that are left, to the same weights."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from agents import PATIENCE, family, is_over, listening, reached, running_agents, wait_for
from ports import free_port

from nmt.training import checkpoint

UPDATES = 6000
MakeJob = Callable[..., dict[str, Any]]


def saved(folder: Path) -> dict[str, bytes]:
    """The weights and moments after the last update."""
    path = checkpoint.latest_resume(folder)
    assert path is not None
    assert path.name == f"update-{UPDATES:08d}"
    return {file.name: file.read_bytes() for file in path.glob("*.safetensors")}


@pytest.mark.timeout(3600)
def test_lost_machines_that_are_not_replaced_change_no_bit(
    tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three machines, of which one stands by; then two, then the first alone."""
    job = tiny_job(updates=UPDATES, shards=4, resume_minutes=0.0001)
    for name in ("undisturbed", "nodes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "job.yaml").write_text(yaml.safe_dump(job))
    folder, port = tmp_path / "nodes", free_port()
    with running_agents() as start:
        alone = start(tmp_path / "undisturbed", 2)
        wait_for(lambda: reached(tmp_path / "undisturbed") > 0)
        processes = family(alone.pid)
        assert len(processes) >= 3, "torchrun and two ranks"
        assert {address for address, _ in listening(processes)} == {"127.0.0.1"}
        assert alone.wait(timeout=10 * PATIENCE) == 0
        assert not list((tmp_path / "undisturbed").glob(".*"))
        monkeypatch.setenv("WMT_NODES", "1:4")
        monkeypatch.setenv("WMT_RENDEZVOUS", f"127.0.0.1:{port}")
        host = start(folder, 1)
        wait_for(
            lambda: port in {number for _, number in listening(family(host.pid))}
        )  # who comes first hosts the rendezvous
        others = [start(folder, 1) for _ in range(2)]
        wait_for(lambda: reached(folder) > 60)
        for other in others:
            workers = psutil.Process(other.pid).children()
            other.kill()
            wait_for(lambda workers=workers: all(map(is_over, workers)))
            before = reached(folder)
            assert before < UPDATES
            wait_for(lambda before=before: reached(folder) > before + 60)
        assert host.wait(timeout=10 * PATIENCE) == 0
    assert json.loads((folder / "done.json").read_text())["resumes"] >= 1
    assert saved(folder) == saved(tmp_path / "undisturbed")


@pytest.mark.timeout(3600)
def test_a_machine_that_joins_stops_nobody_and_one_that_is_stopped_stops_all(
    tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the file that every machine's stage looks for; torchrun stops its workers where a machine joins, too."""
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(tiny_job(updates=100 * UPDATES, shards=4, resume_minutes=0.0001)))
    monkeypatch.setenv("WMT_NODES", "1:4")
    monkeypatch.setenv("WMT_RENDEZVOUS", f"127.0.0.1:{free_port()}")
    with running_agents() as start:
        host = start(tmp_path, 1)
        wait_for(lambda: reached(tmp_path) > 60)
        other = start(tmp_path, 1)
        wait_for(lambda: psutil.Process(other.pid).children())
        before = reached(tmp_path)
        wait_for(lambda: reached(tmp_path) > before + 60)
        assert not (tmp_path / "interrupted").exists()
        host.terminate()
        assert host.wait(timeout=10 * PATIENCE) == 128 + signal.SIGTERM
        assert (tmp_path / "interrupted").exists()
