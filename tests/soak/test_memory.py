"""Memory of training: the same after 10,000 updates as after 1,000, and a few bytes a pair of the corpus."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml

from pipeline.trainings import launch

ROOT = Path(__file__).resolve().parents[2]
MakeJob = Callable[..., dict[str, Any]]
PROBE = """
import sys, threading, time
from pathlib import Path
import torch, yaml
from nmt.training.distributed import World
from nmt.training.settings import Job
from nmt.training.trainer import Trainer
from nmt.training.loop import train
marks = [int(mark) for mark in sys.argv[2:]]
step = Trainer.step
most = 0
def sample():
    global most
    while True:
        own = int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) * 1024
        most = max(most, own)
        time.sleep(0.005)
def watched(self, update):
    step(self, update)
    if update.number in marks:
        print(most, flush=True)
Trainer.step = watched
threading.Thread(target=sample, daemon=True).start()
folder = Path(sys.argv[1])
job = Job.model_validate(yaml.safe_load((folder / "job.yaml").read_text()))
train(job, folder, World(0, 1, torch.device("cpu")))
"""
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.timeout(1800),
]


def resident(folder: Path, job: dict[str, Any], *marks: int) -> list[int]:
    """The most of a training's own memory up to each of some updates, in bytes, without pages of the mapped corpus."""
    folder.mkdir()
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    result = subprocess.run(
        [sys.executable, "-c", PROBE, str(folder), *map(str, marks)],
        cwd=ROOT,
        env={**launch.environment(1), "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    return [int(line) for line in result.stdout.split()]


def test_ten_thousand_updates_take_no_more_than_a_thousand(tmp_path: Path, tiny_job: MakeJob) -> None:
    job = tiny_job(updates=10_000, validate_every=1000, checkpoint_every=1000, resume_minutes=0.05)
    early, late = resident(tmp_path / "run", job, 1000, 10_000)
    print(f"{early / 1e6:.1f} MB after 1,000 updates, {late / 1e6:.1f} MB after 10,000")
    assert late < early + 8e6


def corpus(folder: Path, pairs: int) -> Path:
    """Sentences of 20 to 39 subwords, a bin each; written in blocks, so that this process stays small."""
    folder.mkdir()
    block = 5_000
    schema = pa.schema([("src", pa.list_(pa.uint16())), ("tgt", pa.list_(pa.uint16())), ("line", pa.int64())])
    files = [(f"train.{length:05d}.arrow", length, pairs // 20) for length in range(20, 40)]
    for name, length, count in [*files, ("valid.arrow", 28, block)]:
        ids = np.full(length * block, 5, dtype=np.uint16)
        ids[length - 1 :: length] = 2
        side = pa.ListArray.from_arrays(pa.array(np.arange(block + 1, dtype=np.int32) * length), pa.array(ids))
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_file(file, schema) as out:
            for first in range(0, count, block):
                out.write_batch(pa.record_batch([side, side, pa.array(np.arange(first, first + block))], schema=schema))
    return folder


def test_memory_follows_the_number_of_pairs_by_few_bytes_each(tmp_path: Path, tiny_job: MakeJob) -> None:
    """The ids themselves stay on disk, mapped: 120 bytes a pair here."""
    taken = []
    for pairs in (100_000, 10_100_000):
        job = tiny_job(updates=20, tokens=5000, validate_every=10**6, checkpoint_every=10**6)
        job["corpus"] = str(corpus(tmp_path / str(pairs), pairs))
        taken += resident(tmp_path / f"run-{pairs}", job, 19)
    a_pair = (taken[1] - taken[0]) / 10_000_000
    print(f"{a_pair:.1f} bytes a pair; 36 million pairs: {36e6 * a_pair / 1e9:.2f} GB")
    assert a_pair < 16
