"""A run through Prefect that everything befalls ends with the weights of an undisturbed `dvc repro`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
import torch
from clones import SHRUNKEN, Clone
from orchestra import Orchestra, until

from nmt.common import tensors

pytestmark = pytest.mark.timeout(3600)

TRAINING = {**SHRUNKEN["training"], "updates": 1500, "checkpoint_every": 500, "validate_every": 500}
DOWN = 60.0
"""Seconds that MLflow is stopped."""


def weights(clone: Clone) -> dict[str, torch.Tensor]:
    return tensors.load_tensors(clone.folder / "models/checkpoints/last.safetensors")


def service(process: psutil.Process, *words: str) -> psutil.Process:
    """The service whose command holds the words: the first process under its guard."""
    (guard,) = [child for child in process.children() if all(word in " ".join(child.cmdline()) for word in words)]
    return min(guard.children(), key=psutil.Process.create_time)


@pytest.fixture
def undisturbed(tmp_path: Path) -> Clone:
    clone = Clone(tmp_path / "undisturbed")
    clone.params(overrides={**SHRUNKEN, "training": TRAINING})
    environment = {**clone.environment(), "OMP_NUM_THREADS": "1"}
    clone.environment = lambda: environment
    assert "train" in clone.repro()
    return clone


def test_cancelled_killed_and_cut_off(tmp_path: Path, undisturbed: Clone) -> None:
    clone = Clone(tmp_path / "disturbed")
    clone.params(overrides={**SHRUNKEN, "training": TRAINING})
    orchestra = Orchestra(clone, tmp_path / "home")

    def gone() -> bool:
        return not any(
            orchestra.at_work(name)
            for name in ("pipeline.runs.supervisor", "-m pipeline train", "nmt.training.trainer")
        )

    with orchestra.serving() as services:
        family = psutil.Process(services.pid)

        cancelled = orchestra.deploy()
        until(lambda: orchestra.trained(100), "training to begin")
        orchestra.cancel(cancelled)
        assert orchestra.ended(cancelled)["state_type"] == "CANCELLED"
        until(gone, "the end of the cancelled run's processes")

        killed = orchestra.deploy()
        until(lambda: orchestra.trained(400), "training to go on")
        service(family, "worker", "start").send_signal(signal.SIGKILL)
        assert orchestra.ended(killed)["state_type"] == "CRASHED"
        until(gone, "the end of the killed worker's processes")

        last = orchestra.deploy()
        until(lambda: orchestra.trained(700), "training to go on")
        mlflow = service(family, "mlflow", "server")
        halted = [mlflow, *mlflow.children(recursive=True)]
        for process in halted:
            process.suspend()
        os.kill(service(family, "prefect", "server").pid, signal.SIGKILL)
        time.sleep(DOWN)
        for process in halted:
            process.resume()
        run = orchestra.ended(last, 1200)
        assert run["state_type"] == "COMPLETED", orchestra.messages(last)
        # The server that was killed did not take the lease of the CPU's slot with it.
        (limit,) = orchestra.call("v2/concurrency_limits/filter", {})
        assert limit["active_slots"] == 0
        assert clone.run("dvc", "exp", "apply", run["name"]).returncode == 0
    resumed = weights(clone)
    expected = weights(undisturbed)
    assert all(torch.equal(resumed[name], expected[name]) for name in expected)
