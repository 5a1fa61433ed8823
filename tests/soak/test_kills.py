"""A hundred kills: training killed with SIGKILL at random moments, also while it writes its state, ends to the bit."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from nmt import checkpoint
from nmt.history import read_history

ROOT = Path(__file__).resolve().parents[2]
KILLS = 25
UPDATES = 6000
MakeJob = Callable[..., dict[str, Any]]


def start(folder: Path, ranks: int) -> list[subprocess.Popen[bytes]]:
    """The processes that torchrun would start, as it would start them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [sys.executable, "-m", "nmt.trainer", str(folder)],
            cwd=ROOT, env={**os.environ, **common, "RANK": str(rank), "NMT_MICRO_TOKENS": "64"},
            stderr=subprocess.DEVNULL,
        )
        for rank in range(ranks)
    ]  # fmt: skip


def reached(folder: Path) -> int:
    return max((int(record["update"]) for record in read_history(folder / "history.jsonl")), default=0)


def final_weights(folder: Path) -> dict[str, torch.Tensor]:
    path = checkpoint.latest_resume(folder / "resume")
    assert path is not None
    assert path.name == f"update-{UPDATES:08d}"
    return checkpoint.load_tensors(path / checkpoint.WEIGHTS)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_killed_again_and_again_it_ends_with_the_same_bits(
    tmp_path: Path, tiny_job: MakeJob, ranks: int, precision: str
) -> None:
    # It saves at every report, so that many a kill falls into the writing of a state.
    job = tiny_job(updates=UPDATES, precision=precision, resume_minutes=0.00001)
    for name in ("undisturbed", "disturbed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "job.yaml").write_text(yaml.safe_dump(job))
    for process in start(tmp_path / "undisturbed", ranks):
        assert process.wait() == 0
    folder, choice = tmp_path / "disturbed", random.Random(f"{ranks} {precision}")
    halves = 0
    for _ in range(KILLS):
        before = reached(folder)
        processes = start(folder, ranks)
        while reached(folder) <= before and processes[0].poll() is None:
            time.sleep(0.01)
        time.sleep(choice.random() * 0.3)
        for process in choice.sample(processes, len(processes)):
            process.send_signal(signal.SIGKILL)
        ends = [process.wait() for process in processes]
        assert -signal.SIGKILL in ends, "it ended before it was killed"
        halves += len(list(folder.rglob("*.tmp")))
    print(f"{halves} half-written files or folders were left by {KILLS} kills")
    for process in start(folder, ranks):
        assert process.wait() == 0
    one, other = final_weights(tmp_path / "undisturbed"), final_weights(folder)
    assert all(torch.equal(one[name], other[name]) for name in one)
