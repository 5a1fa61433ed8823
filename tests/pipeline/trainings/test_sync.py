"""States in a store: whole or not at all, for the next machine, pruned; what a store that fails does to training."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import fsspec
import pytest
import yaml
from agents import wait_for
from fsspec.implementations.dirfs import DirFileSystem
from refusals import check_refusal
from stores import BUCKET, SECRET, rclone
from trainings import MakeJob, final_weights, same, stop_after, train_here

from nmt.common.processes import Interrupted
from nmt.training import checkpoint
from nmt.training.state import MOMENTS
from pipeline.trainings import launch, sync

Make = Callable[..., Path]
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


def train_by(training: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a function of the job's folder in the place of torchrun."""
    monkeypatch.setattr(launch, "torchrun", lambda job, watch: training(job) or 0)


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


def content(folder: Path, *parts: str) -> dict[str, str]:
    """The texts of a folder's files, or of those in some parts of it."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_text() for name, path in files.items() if name.startswith(parts or "")}


def test_a_bare_machine_gets_all_that_resuming_needs(store: sync.StateStore, make: Make) -> None:
    here, there = make("here"), make("there")
    for update in (5, 10, 15):
        save(here, update)
    (here / "chain.jsonl").write_text("{}\n")
    expected = content(here)
    checkpoint.checkpoint_path(here / "checkpoints", 20).write_text("after the state")
    for name in ("lock", "interrupted", "failed.json", "rendezvous"):
        (here / name).write_text("of this machine")
    # A state that is kept there may be of other weights: `wmt verify` would call it changed.
    (there / "resume/update-00000002").mkdir(parents=True)
    (there / "checkpoints").mkdir()
    checkpoint.checkpoint_path(there / "checkpoints", 20).write_text("of that machine alone")
    assert store.push(here) == 15
    assert store.pull(there) == 15
    assert content(there) == {**expected, "job.yaml": (there / "job.yaml").read_text()}
    # An older state replaces nothing, nor does an equal one; and none is left half-way.
    assert store.pull(there) == 0
    save(there, 20)
    before = content(there)
    assert store.pull(there) == 0
    assert content(there) == before


def test_the_next_machine_goes_on_where_this_one_was(url: str, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[int]()

    def training(job: Path) -> None:
        seen.append(checkpoint.last_saved_update(job))
        for update in range(seen[-1] + 10, seen[-1] + 40, 10):
            save(job, update)

    train_by(training, monkeypatch)
    for name in ("here", "there"):
        sync.launch_with_store(make(name), lambda: None)
    assert seen == [0, 30]
    # A shorter training leaves the longer one's state alone.
    sync.launch_with_store(make("shorter", updates=20), lambda: None)
    assert sync.StateStore(url, NAME).newest()[0] == 60
    assert sync.StateStore(url, f"{NAME}-20").newest()[0] == 30
    for name, updates in (("longer", 200), ("as long", 90)):
        sync.launch_with_store(make(name, updates=updates), lambda: None)
    assert seen == [0, 30, 0, 60, 90]
    monkeypatch.setenv("WMT_STATE", "/a/folder")
    monkeypatch.setattr(launch, "torchrun", lambda job, watch: 7)
    assert sync.launch_with_store(make("without a store"), lambda: None) == 7


def test_old_states_are_deleted_and_what_did_not_change_is_uploaded_once(
    store: sync.StateStore, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, uploads, put = make("here"), list[str](), store.files.put_file
    monkeypatch.setattr(store.files, "put_file", lambda path, name: (uploads.append(name), put(path, name)))
    for update in (5, 10, 15, 20):
        save(here, update)
        store.push(here)
        store.push(here)
    assert len(uploads) == len(set(uploads)) == 16
    kept = {*content(here)} - {"job.yaml"}
    assert {*store.files.find("")} == {*kept, "newest.json"}


def test_a_damaged_state_does_not_keep_the_stores_whole_one_away(store: sync.StateStore, make: Make) -> None:
    here = make("here")
    save(here, 5)
    store.push(here)
    (here / "resume/update-00000005/sha256.json").write_text('{"state.json": "0"}')
    assert store.pull(here) == 5
    assert (here / "resume/update-00000005/sha256.json").exists() is False


def killed_push(store: sync.StateStore, folder: Path, monkeypatch: pytest.MonkeyPatch, kills: int) -> None:
    """A push that is killed after so many uploads."""
    uploads = iter(range(kills))
    with monkeypatch.context() as patch:
        for name in ("put_file", "pipe_file"):
            call = getattr(store.files, name)
            patch.setattr(store.files, name, lambda *given, call=call, left=uploads: (next(left), call(*given)))
        with pytest.raises(StopIteration):
            store.push(folder)


def test_foreign_checkpoints_go(store: sync.StateStore, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = make("here"), make("there")
    for folder, updates in ((there, (5, 10)), (here, (5, 10, 15))):
        for update in updates:
            save(folder, update)
            with (folder / "chain.jsonl").open("a") as file:
                file.write(f"{update} {folder.parent.name if update > 5 else ''}\n")
        checkpoint.checkpoint_path(folder / "checkpoints", 10).write_text(f"weights of {folder.parent.name}")
        for kills in range(8 if folder == here else 0):
            killed_push(store, here, monkeypatch, kills)
            pulled = make(f"pulled-{kills}")
            assert store.pull(pulled) == 10
            assert content(pulled, "resume", "checkpoints").items() <= content(there).items()
        store.push(folder)
    path = checkpoint.checkpoint_path(here / "checkpoints", 10)
    assert store.files.cat_file(f"checkpoints/{path.name}") == path.read_bytes()


def test_a_state_needs_its_marker(store: sync.StateStore, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at any of the uploads, the store has the state before."""
    here = make("here")
    save(here, 5)
    store.push(here)
    state = content(here, "resume", "checkpoints")
    save(here, 10)
    for kills in range(6):
        killed_push(store, here, monkeypatch, kills)
        there = make(f"there-{kills}")
        assert store.pull(there) == 5
        assert content(there, "resume", "checkpoints") == state
    store.push(here)
    assert store.pull(make("there")) == 10


@pytest.mark.parametrize(
    "name", ["/etc/cron.d/x", "../../x", "resume/update-00000005/../../x", "resume/x/y", "job.yaml", "checkpoints/.x"]
)
def test_a_marker_that_names_other_files_is_refused(store: sync.StateStore, make: Make, name: str) -> None:
    here = make("here")
    save(here, 5)
    store.push(here)
    marker = json.loads(store.files.cat_file("newest.json"))
    store.files.pipe_file("newest.json", json.dumps({**marker, "files": [*marker["files"], name]}).encode())
    there = make("there")
    said = r"^newest\.json in the store names .*, which is no file of a training's state$"
    check_refusal(said, sync.launch_with_store, there, lambda: None)
    assert {path.name for path in there.iterdir()} == {"job.yaml"}


def test_a_killed_fetch_leaves_none_or_all(store: sync.StateStore, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    here = make("here")
    save(here, 5)
    store.push(here)
    replace = os.replace
    for kills in range(9):
        there, moves = make(f"there-{kills}"), iter(range(kills))
        with monkeypatch.context() as patch:
            patch.setattr(sync.os, "replace", lambda *given, left=moves: (next(left), replace(*given)))
            with contextlib.suppress(StopIteration):
                store.pull(there)
        if checkpoint.latest_resume(there) is not None:
            assert content(there) == {**content(here), "job.yaml": content(there)["job.yaml"]}


@pytest.mark.parametrize("deleted", [True, False])
def test_a_state_that_is_being_replaced_is_not_uploaded(
    store: sync.StateStore, make: Make, monkeypatch: pytest.MonkeyPatch, deleted: bool
) -> None:
    """Training deletes a state file by file once the next is complete."""
    here, link = make("here"), sync.link_or_copy
    save(here, 5)

    def replaced(source: Path, target: Path) -> None:
        (here / "resume/update-00000010").mkdir(exist_ok=True)
        if deleted:
            source.unlink()
        link(source, target)

    monkeypatch.setattr(sync, "link_or_copy", replaced)
    assert store.push(here) == 0
    assert store.files.find("") == []


def test_a_store_that_fails_stops_nothing(
    url: str, make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store, here, works = sync.StateStore(url, NAME), make("here"), DirFileSystem.put_file
    fails = Mock(side_effect=ValueError(f"signed with {SECRET}"))

    def training(job: Path) -> None:
        save(job, 10)
        wait_for(lambda: store.newest()[0] == 10)
        monkeypatch.setattr(DirFileSystem, "put_file", fails)
        save(job, 20)
        wait_for(lambda: fails.call_count > 2)
        save(job, 30)
        monkeypatch.setattr(DirFileSystem, "put_file", works)
        wait_for(lambda: store.newest()[0] == 30)
        monkeypatch.setattr(DirFileSystem, "put_file", fails)
        save(job, 40)

    train_by(training, monkeypatch)
    assert sync.launch_with_store(here, lambda: None) == 0
    away = "train: the store fails (ValueError); training goes on, and uploading is tried again"
    said = capsys.readouterr().err.splitlines()
    assert said[:-1] == [away, away], "one warning each time it begins to fail"
    assert "the last state is on this machine only: `dvc repro --force --single-item train` here uploads" in said[-1]
    monkeypatch.setattr(DirFileSystem, "put_file", works)
    (here / "done.json").touch()
    train_by(lambda job: pytest.fail("it is finished"), monkeypatch)
    assert sync.launch_with_store(here, lambda: None) == 0
    assert store.newest()[0] == 40


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with rclone(tmp_path_factory.mktemp("rclone") / "buckets") as variables:
        yield variables


def use(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    """Keep states in the store of these variables."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    fsspec.get_filesystem_class("s3").clear_instance_cache()


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "a-wrong-secret-of-mine"}, "PermissionError"),
        ({"AWS_ACCESS_KEY_ID": "an-unknown-key-of-mine"}, "PermissionError"),
        ({"WMT_STATE": "s3://absent/x"}, "FileNotFoundError"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}, "EndpointConnectionError"),
        ({"WMT_STATE": "nowhere://x"}, "ValueError"),
    ],
)
def test_a_store_that_cannot_be_used_is_one_sentence_without_credentials(
    s3: dict[str, str], make: Make, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], sentence: str
) -> None:
    use(monkeypatch, {**s3, "WMT_STATE": f"s3://{BUCKET}/x", **variables})
    with pytest.raises(OSError, match=rf"//.* cannot be used \({sentence}.*check the addr") as caught:
        sync.launch_with_store(make("here"), lambda: None)
    assert [part for part in ("\n", SECRET, "of-mine") if part in str(caught.value)] == []


@pytest.mark.parametrize("url", ["s3://key:secret@bucket/x", "s3://bucket?token=secret"])
def test_credentials_in_urls_are_refused_not_repeated(make: Make, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("WMT_STATE", url)
    assert "secret" not in check_refusal("", sync.launch_with_store, make("here"), lambda: None)


def test_stopped_by_sigterm_the_last_update_is_uploaded_and_resumed_to_the_same_bits(
    s3: dict[str, str], tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("undisturbed", "here", "there", "third")
    undisturbed, here, there, third = folders = [tmp_path / name / NAME for name in names]
    job = tiny_job(updates=40, resume_minutes=60, keep_checkpoints=3, checkpoint_every=10)
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "job.yaml").write_text(yaml.safe_dump(job))
    url = f"s3://{BUCKET}/some/prefix"
    use(monkeypatch, {**s3, "WMT_STATE": url})

    def stopped_training(job: Path, _: Any) -> int:
        with monkeypatch.context() as patch:
            stop_after(patch, 25)
            assert train_here(job) == 1
        raise Interrupted

    monkeypatch.setattr(launch, "torchrun", stopped_training)
    with pytest.raises(Interrupted):
        sync.launch_with_store(here, lambda: None)
    assert sync.StateStore(url, NAME).newest()[0] == checkpoint.last_saved_update(here) == 25
    shutil.rmtree(here)
    monkeypatch.setattr(launch, "torchrun", train_here)
    assert sync.launch_with_store(there, lambda: None) == 0
    assert train_here(undisturbed) == 0
    assert same(final_weights(there), final_weights(undisturbed))
    expected = [path.name for path in checkpoint.checkpoints(undisturbed / "checkpoints")]
    assert len(expected) == 3
    for name in (*(f"checkpoints/{weights_file}" for weights_file in expected), f"resume/update-00000040/{MOMENTS}"):
        assert (undisturbed / name).read_bytes() == (there / name).read_bytes(), name
    # A third machine gets the finished training.
    assert sync.launch_with_store(third, lambda: None) == 0
    assert same(final_weights(third), final_weights(undisturbed))
    assert {"done.json", "chain.jsonl"} <= {path.name for path in third.iterdir()}
