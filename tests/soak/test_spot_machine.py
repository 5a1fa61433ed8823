"""A spot machine: SIGKILL and a deleted disk at ten random updates; each next machine resumes from the store.

The weights, moments and checkpoints are those of an undisturbed training, to the bit.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from clones import SHRUNKEN, Clone
from stores import BUCKET, rclone

from nmt.common.tensors import WEIGHTS
from nmt.training import checkpoint
from nmt.training.history import read_history
from nmt.training.state import MOMENTS
from pipeline.trainings.sync import StateStore

ROOT = Path(__file__).resolve().parents[2]
KILLS = 10
UPDATES = 1500
STAGE = """
import sys
from pathlib import Path
from pipeline.trainings import sync
sync.launch_with_store(Path(sys.argv[1]), lambda: None)
"""


def start(folder: Path, job: dict[str, Any], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Train on a machine with an empty disk."""
    folder.mkdir(parents=True)
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    return subprocess.Popen([sys.executable, "-c", STAGE, str(folder)], env=environment, start_new_session=True)


def end_session(leader: int) -> None:
    """Kill the stage, torchrun (which leads a session of its own) and the rank."""
    family = [psutil.Process(leader), *psutil.Process(leader).children(recursive=True)]
    for process in family:
        process.send_signal(signal.SIGKILL)
    psutil.wait_procs(family, timeout=60)


def reached(folder: Path) -> int:
    return max((int(record["update"]) for record in read_history(folder / "history.jsonl")), default=0)


@pytest.mark.timeout(7200)
def test_ten_machines_are_lost(
    tmp_path: Path, tiny_job: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tiny_job(updates=UPDATES, resume_minutes=0.0005, keep_checkpoints=4, checkpoint_every=50)
    choice = random.Random("spot")
    with rclone(tmp_path / "buckets") as store:
        environment = {
            **os.environ,
            **store,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "WMT_PROCESSES": "1",
        }
        undisturbed = tmp_path / "undisturbed/0123-4567"
        assert start(undisturbed, job, {**environment, "WMT_STATE": str(tmp_path / "none")}).wait() == 0
        environment["WMT_STATE"] = f"s3://{BUCKET}/spot"
        for name, value in store.items():
            monkeypatch.setenv(name, value)
        states = StateStore(environment["WMT_STATE"], "0123-4567")
        at, lost = 0, []
        for number in range(KILLS):
            folder = tmp_path / f"machine-{number}/0123-4567"
            at = at + choice.randrange(20, UPDATES // KILLS)
            process = start(folder, job, environment)
            while reached(folder) < at:
                assert process.poll() is None, "it ended before it was killed"
                time.sleep(0.01)
            time.sleep(choice.random() * 0.5)
            end_session(process.pid)
            process.wait()
            saved = states.newest()[0]
            lost.append(reached(folder) - saved)
            print(f"machine {number} was lost after update {reached(folder)}, update {saved} was in the store")
            shutil.rmtree(folder.parent)
        last = tmp_path / "last/0123-4567"
        assert start(last, job, environment).wait() == 0
    names = [path.name for path in checkpoint.checkpoints(undisturbed / "checkpoints")]
    assert len(names) == 4
    state = f"resume/update-{UPDATES:08d}"
    for path in (*(f"checkpoints/{name}" for name in names), f"{state}/{WEIGHTS}", f"{state}/{MOMENTS}"):
        assert (undisturbed / path).read_bytes() == (last / path).read_bytes(), path
    updates = [record["update"] for record in read_history(last / "history.jsonl") if "loss" in record]
    assert updates == sorted(set(updates)), "an interval was recorded twice"
    assert len(updates) == len([record for record in read_history(undisturbed / "history.jsonl") if "loss" in record])
    print(f"updates trained twice: {lost}")


@pytest.mark.timeout(7200)
def test_a_bare_clone_resumes_by_dvc_repro(tmp_path: Path) -> None:
    """`dvc repro` gets SIGTERM in training; another clone, with the same variable, ends with the same weights."""
    training = {**SHRUNKEN["training"], "updates": 1500, "checkpoint_every": 500, "validate_every": 500}
    clones = {name: Clone(tmp_path / name) for name in ("undisturbed", "here", "there")}
    with rclone(tmp_path / "buckets") as store:
        for name, clone in clones.items():
            clone.params(overrides={**SHRUNKEN, "training": training})
            environment = {**clone.environment(), **store, "OMP_NUM_THREADS": "1", "WMT_PROCESSES": "1"}
            environment["WMT_STATE"] = f"s3://{BUCKET}/{'undisturbed' if name == 'undisturbed' else 'spot'}"
            clone.environment = lambda environment=environment: environment
        undisturbed, here, there = clones.values()
        assert undisturbed.run("dvc", "repro", "train").returncode == 0
        repro = subprocess.Popen(["dvc", "repro", "train"], cwd=here.folder, env=here.environment())
        while (
            not (histories := list(here.folder.glob("work/train/*/history.jsonl")))
            or reached(histories[0].parent) < 300
        ):
            assert repro.poll() is None
            time.sleep(0.05)
        (stage,) = [
            process
            for process in psutil.Process(repro.pid).children(recursive=True)
            if process.cmdline()[1:] == ["-m", "pipeline", "train"]
        ]
        repro.terminate()
        began = time.monotonic()
        psutil.wait_procs([stage], timeout=300)
        print(f"SIGTERM to the end of the upload: {time.monotonic() - began:.1f} s")
        repro.wait()
        shutil.rmtree(here.folder)
        assert there.run("dvc", "repro", "train").returncode == 0
    last = "models/checkpoints/last.safetensors"
    assert (there.folder / last).read_bytes() == (undisturbed.folder / last).read_bytes()
    summary = json.loads((there.folder / "results/training.json").read_text())
    assert summary["resumes"] == 1
