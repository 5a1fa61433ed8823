"""Two nodes, rehearsed as two torchrun agents on loopback that share a folder: a node lost, and the host lost."""

import json
from pathlib import Path

import psutil
import pytest
import yaml
from agents import PATIENCE, family, is_over, listening, reached, running_agents, wait_for
from ports import free_port
from trainings import MakeJob, final_weights, run, same

from nmt.training import checkpoint

UPDATES = 120


@pytest.mark.timeout(1800)
def test_a_lost_node_is_replaced_and_a_lost_host_ends_both_sides(
    tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "nodes"
    folder.mkdir()
    job = tiny_job(updates=UPDATES, resume_minutes=0.0001)
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    port = free_port()
    monkeypatch.setenv("WMT_NODES", "2")
    monkeypatch.setenv("WMT_RENDEZVOUS", f"127.0.0.1:{port}")
    with running_agents() as start:
        host = start(folder, 1)
        # Who comes first hosts the rendezvous.
        wait_for(lambda: port in {number for _, number in listening(family(host.pid))})
        other = start(folder, 1)
        wait_for(lambda: checkpoint.latest_resume(folder) is not None)

        workers = psutil.Process(other.pid).children()
        assert workers
        other.kill()
        wait_for(lambda: all(map(is_over, workers)))
        before = reached(folder)
        assert 0 < before < UPDATES
        replacement = start(folder, 1)
        wait_for(lambda: reached(folder) > before + 10)
        assert host.poll() is None

        workers = psutil.Process(host.pid).children()
        host.kill()
        wait_for(lambda: all(map(is_over, workers)))
        assert replacement.wait(timeout=PATIENCE) != 0
        before = reached(folder)
        assert before < UPDATES
        assert not (folder / "failed.json").exists(), "a lost node was taken for a fault"

    # In this process; an agent with several ranks is in tests/soak/test_elastic.py.
    assert run(tiny_job(updates=UPDATES), folder)
    assert json.loads((folder / "done.json").read_text())["resumes"] >= 2
    assert run(tiny_job(updates=UPDATES), tmp_path / "undisturbed")
    assert same(final_weights(folder), final_weights(tmp_path / "undisturbed"))
