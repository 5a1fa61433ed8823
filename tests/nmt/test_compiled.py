"""Compiled layers compute what they computed before, for any length, without compiling every length anew."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from nmt.batches import Corpus, train_files, updates
from nmt.config import InputError
from nmt.dist import World
from nmt.trainer import Job, Trainer

CPU = torch.device("cpu")
MakeJob = Callable[..., dict[str, Any]]


def losses(job: Job, count: int) -> list[float]:
    trainer = Trainer(job, World(0, 1, CPU), micro_tokens=64)
    found = []
    for update in updates(Corpus(train_files(Path(job.corpus))), 1, 120, lambda: 64, 0, 1, 1, count):
        trainer.step(update)
        found.append(float(trainer.report()["loss"]))
    return found


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler, and g++ is not here")
def test_the_same_losses_from_few_compilations(tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tiny_job(updates=20)
    settings["model"]["P_drop"] = 0.0
    job = Job.model_validate(settings)
    plain = losses(job, 20)
    monkeypatch.setenv("NMT_COMPILE", "1")
    torch.compiler.reset()
    counters.clear()
    assert losses(job, 20) == pytest.approx(plain, rel=1e-4)
    # Two kinds of layer, and again where a batch or a length of 1 is a case of its own.
    assert 2 <= counters["stats"]["unique_graphs"] <= 12
    torch.compiler.reset()


def test_without_a_working_compiler_training_goes_on(
    tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("No working C++ compiler found\nmore about it")

        return call

    monkeypatch.setattr(torch, "compile", missing)
    monkeypatch.setenv("NMT_COMPILE", "1")
    job = Job.model_validate(tiny_job())
    assert not Trainer(job, World(0, 1, CPU), micro_tokens=64).compiled
    told = capsys.readouterr().err
    assert told == (
        "torch.compile does not work here (No working C++ compiler found): training goes on without it, more slowly\n"
    )


def test_anything_but_0_and_1_is_refused(tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NMT_COMPILE", "yes")
    with pytest.raises(InputError, match="NMT_COMPILE is 'yes'"):
        Trainer(Job.model_validate(tiny_job()), World(0, 1, CPU), micro_tokens=64)
