"""States in a store: whole or not at all, for the next machine, pruned; what a store that fails does to training."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
import yaml
from agents import wait_for
from fsspec.implementations.dirfs import DirFileSystem
from s3fs import S3FileSystem
from stores import BUCKET, SECRET, Store, rclone

from nmt.common.tensors import WEIGHTS
from nmt.config import InputError, Job
from nmt.training import checkpoint, loop
from nmt.training.distributed import World
from nmt.training.state import MOMENTS
from pipeline.train import launch, sync

ROOT = Path(__file__).resolve().parents[3]
Make = Callable[..., Path]
Torchrun = Callable[[Callable[[Path], None]], None]
NAME = "0123-4567"


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store in this process' memory."""
    monkeypatch.setenv("WMT_STATE", f"memory://{tmp_path.name}")
    monkeypatch.setattr(sync, "POLL", 0.05)
    monkeypatch.setattr(sync, "RETRY", 0.05)
    return f"memory://{tmp_path.name}"


@pytest.fixture
def store(url: str) -> sync.StateStore:
    return sync.StateStore(url, NAME)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes folders of a training, empty but for its job."""

    def make(name: str, updates: int = 100) -> Path:
        folder = tmp_path / name / NAME
        folder.mkdir(parents=True)
        (folder / "job.yaml").write_text(f"corpus: {name}\ntraining: {{updates: {updates}}}\n")
        return folder

    return make


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> Torchrun:
    """Puts a function of the job's folder in the place of torchrun."""

    def replace(training: Callable[[Path], None]) -> None:
        monkeypatch.setattr(launch, "torchrun", lambda job, watch: training(job) or 0)

    return replace


def save(folder: Path, update: int, *, keep: int = 2) -> None:
    """What training leaves after `update`."""
    state = folder / f"resume/update-{update:08d}"
    state.mkdir(parents=True)
    for name in ("model.safetensors", "optimizer.safetensors", "state.json"):
        (state / name).write_text(f"{name} {update}")
    for other in (folder / "resume").iterdir():
        if other != state:
            shutil.rmtree(other)
    (folder / "checkpoints").mkdir(exist_ok=True)
    checkpoint.checkpoint_path(folder / "checkpoints", update).write_text(f"weights {update}")
    for old in checkpoint.checkpoints(folder / "checkpoints")[:-keep]:
        old.unlink()
    with (folder / "history.jsonl").open("a") as file:
        file.write(json.dumps({"update": update}) + "\n")


def content(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_without_a_store_it_is_the_launch(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WMT_STATE", "/a/folder")
    monkeypatch.setattr(launch, "torchrun", lambda job, watch: 7)
    folder = make("here")
    assert sync.torchrun(folder, lambda: None) == 7
    assert {path.name for path in folder.iterdir()} == {"job.yaml"}


def test_a_bare_machine_gets_all_that_resuming_needs(store: sync.StateStore, make: Make) -> None:
    here, there = make("here"), make("there")
    for update in (5, 10, 15):
        save(here, update)
    (here / "chain.jsonl").write_text("{}\n")
    expected = content(here)
    checkpoint.checkpoint_path(here / "checkpoints", 20).write_text("after the state")
    for name in ("lock", "interrupted", "failed.json", "rendezvous"):
        (here / name).write_text("of this machine")
    assert store.push(here) == 15
    assert store.pull(there) == 15
    assert content(there) == {**expected, "job.yaml": (there / "job.yaml").read_text()}
    # An older state replaces nothing, and none is left half-way.
    save(there, 20)
    before = content(there)
    assert store.pull(there) == 0
    assert content(there) == before


def test_kept_states_may_be_of_other_weights(store: sync.StateStore, make: Make) -> None:
    """`wmt verify` would call them changed."""
    here, there = make("here"), make("there")
    (there / "states/update-00000002").mkdir(parents=True)
    save(here, 5)
    store.push(here)
    store.pull(there)
    assert list((there / "states").iterdir()) == []


def test_the_next_machine_goes_on_where_this_one_was(url: str, make: Make, torchrun: Torchrun) -> None:
    seen = list[int]()

    def training(job: Path) -> None:
        seen.append(checkpoint.trained(job))
        for update in range(seen[-1] + 10, seen[-1] + 40, 10):
            save(job, update)
        if checkpoint.trained(job) == 60:
            # What training writes after its last state is uploaded at the end.
            wait_for(lambda: sync.StateStore(url, NAME).updates()[:1] == [60])
            (job / "done.json").write_text("{}")

    torchrun(training)
    here, there, third = make("here"), make("there"), make("third")
    sync.torchrun(here, lambda: None)
    sync.torchrun(there, lambda: None)
    assert seen == [0, 30]
    # A third machine finds it done, one that extends it does not, and a shorter training leaves it alone.
    sync.torchrun(third, lambda: None)
    assert (third / "done.json").exists()
    sync.torchrun(make("shorter", updates=20), lambda: None)
    assert sync.StateStore(url, NAME).updates()[0] == 60
    assert sync.StateStore(url, f"{NAME}-20").updates() == [30]
    sync.torchrun(make("longer", updates=200), lambda: None)
    assert seen == [0, 30, 0, 60]


def test_old_states_are_deleted_and_what_did_not_change_is_uploaded_once(
    store: sync.StateStore, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, uploads, put, read, sha256 = make("here"), list[str](), store.files.put_file, list[Path](), sync.sha256_of
    monkeypatch.setattr(sync, "sha256_of", lambda path: (read.append(path), sha256(path))[1])
    monkeypatch.setattr(store.files, "put_file", lambda path, name: (uploads.append(name), put(path, name)))
    for update in (5, 10, 15, 20):
        save(here, update)
        store.push(here)
    assert store.updates() == [20, 15]
    assert len(uploads) == len(set(uploads)) == len(read) == 16
    kept = {name for update in (15, 20) for name in store._read(update)["files"]}
    assert {*store.files.find("resume"), *store.files.find("checkpoints")} == kept
    # A checkpoint of the same name with other weights, as after a resume on a GPU.
    checkpoint.checkpoint_path(here / "checkpoints", 20).write_text("other weights")
    store.push(here)
    assert uploads[16:] == ["checkpoints/update-00000020.safetensors"]


def test_until_its_marker_is_there_a_state_is_not(
    store: sync.StateStore, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at any of the uploads, the store has the state before."""
    here = make("here")
    save(here, 5)
    store.push(here)
    save(here, 10)
    for kills in range(5):
        uploads = iter(range(kills))
        with monkeypatch.context() as patch:
            for name in ("put_file", "pipe_file"):
                call = getattr(store.files, name)
                patch.setattr(store.files, name, lambda *given, call=call, left=uploads: (next(left), call(*given)))
            with pytest.raises(StopIteration):
                store.push(here)
        assert store.updates() == [5]
        assert store.pull(make(f"there-{kills}")) == 5
    store.push(here)
    assert store.pull(make("there")) == 10


@pytest.mark.parametrize("damage", ["missing", "changed", "marker", "outside"])
def test_a_damaged_state_gives_way_to_the_one_before(
    store: sync.StateStore, make: Make, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = make("here"), make("there")
    for update in (5, 10):
        save(here, update)
        store.push(here)
    weights, marker = "resume/update-00000010/model.safetensors", sync._marker(10)
    if damage == "missing":
        store.files.rm_file(weights)
    elif damage == "changed":
        store.files.pipe_file(weights, b"model.safetensors 01")
    elif damage == "marker":
        store.files.pipe_file(marker, b'{"files": {')
    else:
        text = store.files.cat_file(marker)
        store.files.pipe_file("outside", (here / weights).read_bytes())
        store.files.pipe_file(marker, text.replace(weights.encode(), b"../outside"))
    assert store.pull(there) == checkpoint.trained(there) == 5
    assert not (there.parent / "outside").exists()
    assert "update 10 in the store is damaged" in capsys.readouterr().out
    # The damaged state does not stand in the way of those that follow, and is uploaded again.
    save(there, 8)
    store.push(there)
    assert store.updates() == [8, 5]
    store.push(here)
    assert store.pull(make("third")) == 10


def test_a_state_that_is_being_replaced_is_not_uploaded(
    store: sync.StateStore, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training deletes a state file by file once the next is complete."""
    here, found = make("here"), checkpoint.latest_resume
    save(here, 5)

    def replaced(folder: Path) -> Path | None:
        state = found(folder)
        (here / "resume/update-00000005").rename(here / "resume/update-00000010")
        return state

    monkeypatch.setattr(checkpoint, "latest_resume", replaced)
    assert store.push(here) == 0
    assert store.updates() == []


def test_a_store_that_fails_stops_nothing(
    url: str, make: Make, torchrun: Torchrun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    works, failed, put = True, 0, DirFileSystem.put_file

    def put_file(*given: Any) -> None:
        nonlocal failed
        if not works:
            failed += 1
            raise ValueError(f"signed with {SECRET}")
        put(*given)

    def training(job: Path) -> None:
        nonlocal works
        save(job, 10)
        wait_for(lambda: store.updates() == [10])
        works = False
        save(job, 20)
        wait_for(lambda: failed > 2)
        save(job, 30)
        works = True
        wait_for(lambda: store.updates() == [30, 10])
        works = False
        save(job, 40)

    monkeypatch.setattr(DirFileSystem, "put_file", put_file)
    store, here = sync.StateStore(url, NAME), make("here")
    torchrun(training)
    assert sync.torchrun(here, lambda: None) == 0
    away = "train: the store fails (ValueError); training goes on, and uploading is tried again"
    said = capsys.readouterr().err.splitlines()
    assert said[:-1] == [away, away], "one warning each time it begins to fail"
    assert "the last state is on this machine only: `dvc repro --force --single-item train` here uploads" in said[-1]
    works = True
    (here / "done.json").write_text("{}")
    torchrun(lambda job: pytest.fail("it is finished"))
    assert sync.torchrun(here, lambda: None) == 0
    assert store.updates() == [40, 30]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with rclone(tmp_path_factory.mktemp("rclone") / "buckets") as server:
        yield server


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "a-wrong-secret-of-mine"}, "PermissionError"),
        ({"AWS_ACCESS_KEY_ID": "an-unknown-key-of-mine"}, "PermissionError"),
        ({"WMT_STATE": "s3://absent/x"}, "FileNotFoundError"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "EndpointConnectionError"),
        ({"WMT_STATE": "nowhere://x"}, "ValueError"),
    ],
)
def test_a_store_that_cannot_be_used_is_one_sentence_without_credentials(
    s3: Store, make: Make, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], sentence: str
) -> None:
    for name, value in {**s3.environment(), "WMT_STATE": f"s3://{BUCKET}/x", **variables}.items():
        monkeypatch.setenv(name, value)
    S3FileSystem.clear_instance_cache()
    with pytest.raises(OSError, match=rf"//.* cannot be used \({sentence}.*check the addr") as found:
        sync.torchrun(make("here"), lambda: None)
    text = str(found.value)
    assert "\n" not in text
    assert SECRET not in text
    assert "of-mine" not in text


@pytest.mark.parametrize("url", ["s3://key:secret@bucket/x", "s3://bucket?token=secret"])
def test_credentials_in_the_url_are_refused_and_not_repeated(
    make: Make, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("WMT_STATE", url)
    with pytest.raises(InputError, match="without credentials") as refused:
        sync.torchrun(make("here"), lambda: None)
    assert "secret" not in str(refused.value)


STAGE = """
import signal, sys
from pathlib import Path
from pipeline.train import launch, sync
launch.command = lambda count, job: [sys.executable, "-m", "nmt.training.loop", str(job)]
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
sync.torchrun(Path(sys.argv[1]), lambda: None)
"""
"""What the stage `train` does, in a process that can be stopped. The training is its child: no torchrun is between."""


def train_here(folder: Path) -> int:
    """Train the job in a folder as torchrun's only process does, in this process: importing torch takes seconds."""
    job = Job.model_validate(yaml.safe_load((folder / "job.yaml").read_text(encoding="utf-8")))
    torch.set_flush_denormal(True)
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        return 0 if loop.train(job, folder, World(0, 1, torch.device("cpu"))) else 1
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
        torch.set_flush_denormal(False)


@pytest.mark.timeout(900)
def test_stopped_by_sigterm_the_last_update_is_uploaded_and_resumed_to_the_same_bits(
    s3: Store, tmp_path: Path, tiny_job: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name / NAME for name in ("undisturbed", "here", "there")]
    for folder in folders:
        folder.mkdir(parents=True)
        job = tiny_job(updates=200, resume_minutes=60, keep_checkpoints=3, checkpoint_every=50)
        (folder / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    undisturbed, here, there = folders
    variables = {"OMP_NUM_THREADS": "1", "WMT_PROCESSES": "1", "WMT_STATE": f"s3://{BUCKET}/some/prefix"}
    for name, value in {**s3.environment(), **variables, "PYTHONPATH": str(ROOT)}.items():
        monkeypatch.setenv(name, value)
    stage = subprocess.Popen([sys.executable, "-c", STAGE, str(here)])
    try:
        wait_for((here / "history.jsonl").exists)
        stage.send_signal(signal.SIGTERM)
        assert stage.wait(300) == 75
    finally:
        stage.kill()
        stage.wait()
    update = checkpoint.trained(here)
    assert 0 < update < 200
    S3FileSystem.clear_instance_cache()
    assert sync.StateStore(variables["WMT_STATE"], NAME).updates() == [update]
    shutil.rmtree(here)
    monkeypatch.setattr(launch, "torchrun", lambda job, _: train_here(job))
    assert sync.torchrun(there, lambda: None) == 0
    assert train_here(undisturbed) == 0
    names = [path.name for path in checkpoint.checkpoints(undisturbed / "checkpoints")]
    assert len(names) == 3
    state = "resume/update-00000200"
    for path in (*(f"checkpoints/{name}" for name in names), f"{state}/{WEIGHTS}", f"{state}/{MOMENTS}"):
        assert (undisturbed / path).read_bytes() == (there / path).read_bytes(), path
