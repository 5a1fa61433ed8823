"""Training whose states are uploaded: what survives the machine, and what a store that fails does to it."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
import yaml
from stores import BUCKET, Store, start_rclone

from nmt.common.tensors import WEIGHTS
from nmt.config import InputError, Job
from nmt.training import checkpoint, trainer
from nmt.training.distributed import World
from nmt.training.state import MOMENTS
from pipeline.training import launch, lease, mirror
from pipeline.training.bucket import Bucket, StoreError
from pipeline.training.remote_states import RemoteStates

ROOT = Path(__file__).resolve().parents[3]
Make = Callable[[str], Path]
MakeJob = Callable[..., dict[str, Any]]
STAGE = """
import sys
from pathlib import Path
from pipeline import __main__ as runner
from pipeline.common.stage import Interrupted
from pipeline.training import launch, mirror
import signal
launch.command = lambda count, job: [sys.executable, "-m", "nmt.training.trainer", str(job)]
signal.signal(signal.SIGTERM, runner.stop)
def watch():
    if Path(sys.argv[1], "interrupted").exists():
        raise Interrupted("a training process was asked to stop")
try:
    mirror.train(Path(sys.argv[1]), watch)
except Interrupted:
    sys.exit(75)
"""
"""What the stage `train` does, in a process that can be stopped. The training is its child: no torchrun is between."""


def save(folder: Path, update: int) -> None:
    state = folder / f"resume/update-{update:08d}"
    state.mkdir(parents=True)
    (state / "model.safetensors").write_text(f"weights {update}")
    for other in (folder / "resume").iterdir():
        if other != state:
            shutil.rmtree(other)


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def trains(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Path], None]], None]:
    """Puts a function of the job's folder in the place of torchrun."""
    monkeypatch.setattr(mirror, "POLL", 0.1)
    monkeypatch.setattr(mirror, "RETRY", 0.1)
    monkeypatch.setattr(lease, "SETTLE", 0.1)

    def replace(training: Callable[[Path], None]) -> None:
        def train(job: Path, watch: Callable[[], None]) -> int:
            training(job)
            watch()
            return 0

        monkeypatch.setattr(launch, "train", train)

    return replace


def test_without_a_store_it_is_the_launch(training_folder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WMT_STATE", "/a/folder")
    monkeypatch.delenv("WMT_STATE_STORE", raising=False)
    monkeypatch.setattr(launch, "train", lambda job, watch: 7)
    folder = training_folder("here")
    assert mirror.train(folder, lambda: None) == 7
    assert {path.name for path in folder.iterdir()} == {"job.yaml"}


def test_the_next_machine_goes_on_where_this_one_was(
    store: Store, training_folder: Make, trains: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"s3://{BUCKET}/{tmp_path.name}"
    monkeypatch.setenv("WMT_STATE_STORE", url)
    here, there, seen, bucket = training_folder("here"), training_folder("there"), list[int](), Bucket(url)

    def training(job: Path) -> None:
        seen.append(checkpoint.trained(job))
        for update in range(seen[-1] + 10, seen[-1] + 40, 10):
            save(job, update)
        if checkpoint.trained(job) == 60:
            # What training writes after its last state is uploaded at the end.
            wait_for(lambda: RemoteStates(bucket, job.name).updates()[:1] == [60])
            (job / "done.json").write_text("{}")

    trains(training)
    mirror.train(here, lambda: None)
    mirror.train(there, lambda: None)
    assert seen == [0, 30]
    # A third machine finds it done, and a shorter training leaves the longer one alone.
    third, shorter = training_folder("third"), training_folder("shorter")
    mirror.train(third, lambda: None)
    assert (third / "done.json").exists()
    (shorter / "job.yaml").write_text("corpus: x\ntraining: {updates: 20}\n")
    mirror.train(shorter, lambda: None)
    assert seen == [0, 30, 0]
    assert RemoteStates(bucket, third.name).updates()[0] == 60
    assert RemoteStates(bucket, f"{third.name}-20").updates()[0] == 30
    assert not [key for key in bucket.sizes("") if "lease" in key], "a lease was not released"


def test_a_store_that_is_away_stops_nothing(
    training_folder: Make, trains: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    first = start_rclone(tmp_path / "buckets")
    processes = [first.process]
    for name, value in {**first.environment(), "WMT_STATE": f"s3://{BUCKET}/x"}.items():
        monkeypatch.setenv(name, value)
    here = training_folder("here")
    bucket = Bucket(f"s3://{BUCKET}/x")
    said = list[str]()
    monkeypatch.setattr(mirror.Uploads, "_say", lambda _, text: said.append(text))

    def training(job: Path) -> None:
        save(job, 10)
        wait_for(lambda: RemoteStates(bucket, job.name).updates() == [10])
        assert processes[0] is not None
        processes[0].kill()
        processes[0].wait()
        save(job, 20)
        wait_for(lambda: len(said) == 1)
        save(job, 30)
        processes.append(start_rclone(tmp_path / "buckets", int(first.endpoint.rsplit(":", 1)[1])).process)
        wait_for(lambda: len(said) == 2)

    trains(training)
    try:
        mirror.train(here, lambda: None)
    finally:
        for process in processes:
            assert process is not None
            process.kill()
            process.wait()
    assert said[0].startswith("the store does not answer (EndpointConnectionError); training goes on, and its states ")
    assert said[1:] == ["the store takes states again", "update 30 is in the store"]
    capsys.readouterr()
    # At the start it is an error: another machine may train this, or have its state.
    with pytest.raises(StoreError, match="does not answer"):
        mirror.train(here, lambda: None)


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        StoreError(5, "the store is full (QuotaExceeded): free space there", "s3://"),
        OSError(5, "Input/output error", "model"),
    ],
    ids=["store", "disk"],
)
def test_what_was_not_uploaded_is_told_and_uploaded_later(
    strict: Store, training_folder: Make, trains: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], error: OSError, done: bool,
) -> None:  # fmt: skip
    url = f"s3://{BUCKET}/{tmp_path.name}"
    monkeypatch.setenv("WMT_STATE", url)
    monkeypatch.setattr(mirror, "PATIENCE", 0.3)

    def training(job: Path) -> None:
        assert checkpoint.trained(job) == 0 or not done, "it is finished"
        if checkpoint.trained(job) == 0:
            save(job, 10)
        if done:
            (job / "done.json").write_text("{}")

    def failing(*_: object) -> None:
        raise error

    trains(training)
    here = training_folder("here")
    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "upload", failing)
        mirror.train(here, lambda: None)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert re.search(rf"{re.escape(str(error.strerror))}.*; training goes on", lines[0])
    command = "`dvc repro --force --single-item train`" if done else "the same command"
    assert f"update 10 is on this machine only: run {command} here to upload it" in lines[1]
    mirror.train(here, lambda: None)
    assert "update 10 is in the store" in capsys.readouterr().err
    assert RemoteStates(Bucket(url), here.name).updates() == [10]


def test_a_machine_that_lost_its_lease_stops(
    strict: Store, training_folder: Make, trains: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WMT_STATE", f"s3://{BUCKET}/{tmp_path.name}")
    monkeypatch.setenv("WMT_LEASE_SECONDS", "2")
    bucket = Bucket(f"s3://{BUCKET}/{tmp_path.name}")
    key = "0123-4567/lease.json"

    def training(job: Path) -> None:
        bucket.write(key, b'{"owner": "another", "host": "there", "renewals": 1}')
        wait_for(lambda: not any(thread.name.startswith("lease") for thread in threading.enumerate()))
        save(job, 10)

    trains(training)
    with pytest.raises(InputError, match=r"another machine trains this now \(s3://.*: this one has stopped"):
        mirror.train(training_folder("here"), lambda: None)
    assert RemoteStates(bucket, "0123-4567").updates() == []


VARIABLES = {"OMP_NUM_THREADS": "1", "WMT_PROCESSES": "1", "WMT_LEASE_SECONDS": "6"}


def train_here(folder: Path) -> int:
    """Train the job in a folder as torchrun's only process does, in this process: importing torch takes seconds."""
    job = Job.model_validate(yaml.safe_load((folder / "job.yaml").read_text(encoding="utf-8")))
    torch.set_flush_denormal(True)
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        return 0 if trainer.train(job, folder, World(0, 1, torch.device("cpu"))) else 1
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
        torch.set_flush_denormal(False)


@pytest.mark.timeout(900)
def test_stopped_by_sigterm_the_last_update_is_uploaded_and_resumed_to_the_same_bits(
    strict: Store, tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"s3://{BUCKET}/{tmp_path.name}"
    for name, value in {**VARIABLES, "WMT_STATE": url, "PYTHONPATH": str(ROOT)}.items():
        monkeypatch.setenv(name, value)
    folders = [tmp_path / name / "0123-4567" for name in ("undisturbed", "here", "there")]
    for folder in folders:
        folder.mkdir(parents=True)
        job = tiny_job(updates=200, resume_minutes=60, keep_checkpoints=3, checkpoint_every=50)
        (folder / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    undisturbed, here, there = folders
    stage = subprocess.Popen([sys.executable, "-c", STAGE, str(here)])
    try:
        wait_for((here / "history.jsonl").exists, 600)
        stage.send_signal(signal.SIGTERM)
        assert stage.wait(300) == 75
    finally:
        stage.kill()
        stage.wait()
    update = checkpoint.trained(here)
    assert 0 < update < 200
    assert RemoteStates(Bucket(url), "0123-4567").updates() == [update]
    shutil.rmtree(here)
    monkeypatch.setattr(launch, "train", lambda job, _: train_here(job))
    assert mirror.train(there, lambda: None) == 0
    assert train_here(undisturbed) == 0
    names = [path.name for path in checkpoint.checkpoints(undisturbed / "checkpoints")]
    assert len(names) == 3
    state = "resume/update-00000200"
    for path in (*(f"checkpoints/{name}" for name in names), f"{state}/{WEIGHTS}", f"{state}/{MOMENTS}"):
        assert (undisturbed / path).read_bytes() == (there / path).read_bytes(), path
