"""Trainings of one process, inside the tests': run, stopped after an update."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
import yaml

from nmt.common import tensors
from nmt.training import checkpoint, state
from nmt.training.chain import read_chain
from nmt.training.distributed import World
from nmt.training.history import read_history
from nmt.training.loop import train
from nmt.training.settings import Job
from nmt.training.trainer import Trainer

ALONE = World(0, 1, torch.device("cpu"))
CONDITIONS = state.ResumeConditions(
    device="cpu", processor="EPYC", threads=1, compiled=False, deterministic=True, torch="2.13.0"
)
MakeJob = Callable[..., dict[str, Any]]


def write_arrow(path: Path, pairs: Sequence[tuple[list[int], list[int]]], block: int = 5) -> Path:
    """Write pairs of ids, EOS included, to an Arrow file as the stage binarize does, in small record batches."""
    sides = [pa.array(ids, pa.list_(pa.uint16())) for ids in (zip(*pairs, strict=True) if pairs else ([], []))]
    table = pa.table({"src": sides[0], "tgt": sides[1], "line": pa.array(range(len(pairs)), pa.int64())})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
        out.write_table(table, max_chunksize=block)
    return path


def run(job: dict[str, Any], folder: Path) -> bool:
    folder.mkdir(exist_ok=True)
    return train(Job.model_validate(job), folder, ALONE)


def train_here(folder: Path, watch: object = None, threads: int = 0) -> int:
    """Train the job in a folder as torchrun's only process does, in this process: importing torch takes seconds."""
    return 0 if run(yaml.safe_load((folder / "job.yaml").read_text()), folder) else 1


def stop_after(patch: pytest.MonkeyPatch, number: int, seconds: float = 0.0) -> None:
    """Have trainings be asked to stop after an update; each update takes so many `seconds` more."""
    step = Trainer.step

    def watched(self: Trainer, update: Any) -> None:
        time.sleep(seconds)
        step(self, update)
        if update.number == number:
            os.kill(os.getpid(), signal.SIGTERM)

    patch.setattr(Trainer, "step", watched)


def stopped(job: dict[str, Any], folder: Path, *numbers: int, seconds: float = 0.0) -> None:
    """Run a training that is stopped after each of the updates in turn."""
    for number in numbers:
        with pytest.MonkeyPatch.context() as patch:
            stop_after(patch, number, seconds)
            assert not run(job, folder)


def logged(folder: Path, key: str) -> list[Any]:
    """The values of a key in a training's history, by update."""
    return [record[key] for record in read_history(folder / "history.jsonl") if key in record]


def hashes(folder: Path) -> list[tuple[int, str]]:
    """The chain of a training: updates and their links."""
    return [(link.update, link.link) for link in read_chain(folder / "chain.jsonl")]


def final_weights(folder: Path) -> dict[str, torch.Tensor]:
    return tensors.load_tensors(checkpoint.latest_resume(folder) / tensors.WEIGHTS)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
