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
from nmt.training.batches import Corpus, train_files
from nmt.training.distributed import World
from nmt.training.history import interval_means
from nmt.training.trainer import Trainer

CPU = torch.device("cpu")
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
MakeJob = Callable[..., dict[str, Any]]


# In a process of its own: the types that are checked in tests are no part of what users compile. Packed batches without
# the C++ compiler, which takes half a minute for them and sees nothing new.
PROBE = """
import functools, json, os, sys
import torch
from torch._dynamo.utils import counters
from nmt.config import Job
from test_compilation import losses_of
found = []
for packed, backend in (("0", "inductor"), ("1", "aot_eager")):
    os.environ["NMT_GRAPH"] = packed
    torch.compiler.reset()
    counters.clear()
    torch.compile = functools.partial(torch.compile, backend=backend)
    losses, compiled = losses_of(Job.model_validate(json.loads(sys.argv[1])))
    found.append([losses, counters["stats"]["unique_graphs"], compiled])
print(json.dumps(found))
"""


def losses_of(job: Job) -> tuple[list[float], bool]:
    """The losses of all updates, and whether layers were compiled."""
    made = Trainer(job, World(0, 1, CPU))
    losses = []
    for update in made.updates(Corpus(train_files(Path(job.corpus))), job.training.updates):
        made.step(update)
        losses.append(interval_means(made.measured.take_interval())["loss"])
    return losses, made.compiled


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler, and g++ is not here")
def test_the_same_losses_from_few_compilations(tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    # So many tokens that no stream is as long as a row: the code of equal sizes is another one.
    job = tiny_job(updates=20, tokens=300)
    job["model"] |= {"P_drop": 0.0, "N": 3}
    # In one process: those that compile beside it first import torch, each of them.
    environment = {**os.environ, "NMT_COMPILE": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, HERE)))
    result = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(job)],
        cwd=ROOT, env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip
    monkeypatch.setenv("NMT_COMPILE", "0")
    plain, compiled = losses_of(Job.model_validate(job))
    assert not compiled
    # Two kinds of layer and the loss, and for padded batches again where a batch or a length of 1 is a case of its own.
    for (losses, graphs, compiled), most in zip(json.loads(result.stdout.split("\n")[-2]), (12, 4), strict=True):
        assert compiled
        assert 3 <= graphs <= most
        assert losses == pytest.approx(plain, rel=1e-4)


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
