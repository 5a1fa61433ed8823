"""Compiled layers compute what they computed before, for any length, without compiling every length anew."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt.config import InputError, Job
from nmt.training.distributed import World
from nmt.training.trainer import Trainer

CPU = torch.device("cpu")
ROOT = Path(__file__).resolve().parents[3]
MakeJob = Callable[..., dict[str, Any]]


# In a process of its own: the types that are checked in tests are no part of what users compile.
PROBE = """
import json, sys
from pathlib import Path
import torch
from torch._dynamo.utils import counters
from nmt.training.batches import Corpus, train_files, updates
from nmt.training.distributed import World
from nmt.training.history import interval_means
from nmt.config import Job
from nmt.training.trainer import Trainer
job = Job.model_validate(json.loads(sys.argv[1]))
trainer = Trainer(job, World(0, 1, torch.device("cpu")))
losses = []
for update in updates(Corpus(train_files(Path(job.corpus))), 1, 120, 2, 0, 1, 1, 20):
    trainer.step(update)
    losses.append(interval_means(trainer.measured.take_interval())["loss"])
print(json.dumps([losses, counters["stats"]["unique_graphs"], trainer.compiled]))
"""


def trained(job: dict[str, Any], **environment: str) -> tuple[list[float], int, bool]:
    """The losses of twenty updates, how many graphs were compiled, and whether layers were."""
    result = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(job)],
        cwd=ROOT, env={**os.environ, **environment}, check=True, capture_output=True, text=True,
    )  # fmt: skip
    losses, graphs, compiled = json.loads(result.stdout.split("\n")[-2])
    return losses, graphs, compiled


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler, and g++ is not here")
def test_the_same_losses_from_few_compilations(tiny_job: MakeJob) -> None:
    job = tiny_job(updates=20)
    job["model"]["P_drop"] = 0.0
    plain, none, _ = trained(job, NMT_COMPILE="0")
    losses, graphs, compiled = trained(job, NMT_COMPILE="1")
    assert none == 0
    assert compiled
    assert losses == pytest.approx(plain, rel=1e-4)
    # Two kinds of layer, and again where a batch or a length of 1 is a case of its own.
    assert 2 <= graphs <= 12


def test_without_a_working_compiler_training_continues(
    tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("No working C++ compiler found\nmore about it")

        return call

    monkeypatch.setattr(torch, "compile", missing)
    monkeypatch.setenv("NMT_COMPILE", "1")
    job = Job.model_validate(tiny_job())
    assert not Trainer(job, World(0, 1, CPU)).compiled
    errors = capsys.readouterr().err
    assert errors == (
        "torch.compile does not work here (No working C++ compiler found): training continues, but slower\n"
    )


def test_anything_but_0_and_1_is_refused(tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NMT_COMPILE", "yes")
    with pytest.raises(InputError, match="NMT_COMPILE is 'yes'"):
        Trainer(Job.model_validate(tiny_job()), World(0, 1, CPU))
