"""Several gloo processes on one machine: the same losses as one, sums that every rank takes part in, exact resume."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from nmt import checkpoint
from nmt.batches import Corpus, train_files, updates
from nmt.history import read_history

ROOT = Path(__file__).resolve().parents[2]
MakeJob = Callable[..., dict[str, Any]]
WORKER = """
import sys
from pathlib import Path
import torch, yaml
from nmt.dist import world
from nmt.trainer import Job, train
folder = Path(sys.argv[1])
torch.set_num_threads(1)
with world(store=sys.argv[2]) as place:
    done = train(Job.model_validate(yaml.safe_load((folder / "job.yaml").read_text())), folder, place, 64)
sys.exit(0 if done else 75)
"""


STOP_AFTER = """
from nmt.trainer import Trainer
step = Trainer.step
def watched(self, update):
    step(self, update)
    self.stop_asked = update.number == NUMBER
Trainer.step = watched
"""
"""Has a worker be asked to stop after an update."""


def start(
    folder: Path,
    job: dict[str, Any],
    ranks: int,
    attempt: int = 0,
    homes: Sequence[Path] | None = None,
    worker: str = WORKER,
) -> list[subprocess.Popen[bytes]]:
    """The ranks of a training, meeting over a file instead of a port that something else may hold.

    `homes`: the working directory of each, if not this repository.
    """
    folder.mkdir(exist_ok=True)
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    store = f"file://{folder}/store-{attempt}"
    return [
        subprocess.Popen(
            [sys.executable, "-c", worker, str(folder), store],
            cwd=homes[rank] if homes else ROOT,
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(ROOT),
            },
        )
        for rank in range(ranks)
    ]


def finish(processes: list[subprocess.Popen[bytes]]) -> list[int]:
    try:
        return [process.wait(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()


def losses(folder: Path) -> list[float]:
    return [record["loss"] for record in read_history(folder / "history.jsonl") if "loss" in record]


@pytest.mark.timeout(240)
def test_any_number_of_ranks_follows_the_same_losses(tmp_path: Path, tiny_job: MakeJob) -> None:
    """With dropout 0, on uneven updates of one to a dozen pairs: of eight ranks some often have no sentence."""
    job = tiny_job(updates=50, tokens=20, warmup_steps=400)
    job["model"]["P_drop"] = 0.0
    curves = {}
    for ranks in (1, 2, 8):
        assert finish(start(tmp_path / str(ranks), job, ranks)) == [0] * ranks
        curves[ranks] = losses(tmp_path / str(ranks))
        assert len(curves[ranks]) == 50
    assert curves[2] == pytest.approx(curves[1], rel=1e-4)
    assert curves[8] == pytest.approx(curves[1], rel=1e-4)
    corpus = Corpus(train_files(Path(job["corpus"])))
    sizes = [update.sums.pairs for update in updates(corpus, 1, 20, lambda: 64, 0, 1, 1, 50)]
    assert min(sizes) < 8
    assert len(set(sizes)) > 3
    done = [json.loads((tmp_path / str(ranks) / "done.json").read_text()) for ranks in (1, 8)]
    assert done[0]["pairs"] == done[1]["pairs"]
    assert done[0]["ppl_valid"] == pytest.approx(done[1]["ppl_valid"], rel=1e-4)


def test_ranks_with_different_corpora_do_not_train(
    tmp_path: Path, tiny_job: MakeJob, capfd: pytest.CaptureFixture[str]
) -> None:
    job = tiny_job(updates=5)
    path = Path(job["corpus"])
    # Two machines, each with a folder of that name.
    homes = [tmp_path / "first", tmp_path / "second"]
    for home in homes:
        shutil.copytree(path, home / "corpus")
    (homes[1] / "corpus/train.00004.arrow").unlink()
    job["corpus"] = "corpus"
    assert all(status not in (0, 75) for status in finish(start(tmp_path / "run", job, 2, homes=homes)))
    assert "the machines' corpora differ" in capfd.readouterr().err


@pytest.mark.timeout(240)
def test_means_of_an_interval_are_right_after_a_resume_on_fewer_ranks(tmp_path: Path, tiny_job: MakeJob) -> None:
    """Stopped after 15 of an interval's 20 updates on two ranks, resumed on one: losses, norm and padding go on."""
    job = tiny_job(
        updates=2000, validate_every=2000, checkpoint_every=2000, resume_minutes=10.0, learning_rate_scale=1e-9
    )
    job["model"]["P_drop"] = 0.0
    stopping = WORKER.replace("folder = Path", STOP_AFTER + "folder = Path")
    records = {}
    for name, attempts in (("two, then one", ((2, 15), (1, 21))), ("one", ((1, 21),))):
        for attempt, (ranks, number) in enumerate(attempts):
            words = stopping.replace("NUMBER", str(number))
            assert finish(start(tmp_path / name, job, ranks, attempt, worker=words)) == [75] * ranks
        (records[name],) = read_history(tmp_path / name / "history.jsonl")
    for key in ("loss", "nll", "gradient_norm", "tokens"):
        assert records["two, then one"][key] == pytest.approx(records["one"][key], rel=1e-4)


@pytest.mark.timeout(240)
def test_two_ranks_killed_and_resumed_end_with_the_same_bits(tmp_path: Path, tiny_job: MakeJob) -> None:
    job = tiny_job(updates=120)
    assert finish(start(tmp_path / "undisturbed", job, 2)) == [0, 0]
    folder = tmp_path / "disturbed"
    for attempt, how in enumerate([signal.SIGKILL, signal.SIGTERM]):
        processes = start(folder, job, 2, attempt)
        wanted = 20 * (attempt + 1)
        deadline = time.monotonic() + 60
        while len(losses(folder)) < wanted and time.monotonic() < deadline:
            time.sleep(0.005)
        for process in processes:
            process.send_signal(how)
        assert all(status != 0 for status in finish(processes))
    assert finish(start(folder, job, 2, 2)) == [0, 0]
    weights = []
    for name in ("undisturbed", "disturbed"):
        path = checkpoint.latest_resume(tmp_path / name / "resume")
        assert path is not None
        weights.append(checkpoint.load_tensors(path / checkpoint.WEIGHTS))
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert json.loads((folder / "done.json").read_text())["resumes"] == 2
