"""States in a store: whole or not at all, shared between states, pruned; a damaged one gives way to the one before."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest
from stores import BUCKET, Store

from nmt.training import checkpoint
from nmt.training.chain import Link
from pipeline.training.bucket import Bucket
from pipeline.training.remote_states import KEPT, RemoteStates

Make = Callable[[str], Path]


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


@pytest.fixture
def states(strict: Store, tmp_path: Path) -> RemoteStates:
    return RemoteStates(Bucket(f"s3://{BUCKET}/{tmp_path.name}"), "0123-4567")


def test_a_bare_machine_gets_all_that_resuming_needs(states: RemoteStates, training_folder: Make) -> None:
    here, there = training_folder("here"), training_folder("there")
    for update in (5, 10, 15):
        save(here, update)
    (here / "skipped.jsonl").write_text('{"update": 3, "lines": [1]}\n')
    for name in ("lock", "interrupted", "failed.json", "lease-owner"):
        (here / name).write_text("of this machine")
    assert states.push(here) == 15
    assert states.pull(there) == 15
    expected = {name: text for name, text in content(here).items() if text != "of this machine"}
    assert content(there) == {**expected, "job.yaml": (there / "job.yaml").read_text()}
    assert states.pull(there) is None, "it is there already"


def test_what_comes_after_the_state_is_left_out(states: RemoteStates, training_folder: Make) -> None:
    here, there = training_folder("here"), training_folder("there")
    save(here, 5)
    checkpoint.checkpoint_path(here / "checkpoints", 10).write_text("weights 10")
    states.push(here)
    states.pull(there)
    assert [path.name for path in checkpoint.checkpoints(there / "checkpoints")] == ["update-00000005.safetensors"]


def test_kept_states_of_another_chain_are_removed(states: RemoteStates, training_folder: Make) -> None:
    """`wmt verify` would call them changed."""
    here, there = training_folder("here"), training_folder("there")
    for folder, last in ((here, "b"), (there, "c")):
        links = [
            Link(update=n, updates=9, weights="", moments="", losses="", conditions={}, link=link).model_dump_json()
            for n, link in ((2, "a"), (4, last))
        ]
        (folder / "chain.jsonl").write_text("\n".join([*links, ""]))
        for update in (2, 4):
            (folder / f"states/update-{update:08d}").mkdir(parents=True)
    save(here, 5)
    states.push(here)
    states.pull(there)
    assert [path.name for path in (there / "states").iterdir()] == ["update-00000002"]


def test_an_older_state_replaces_nothing(states: RemoteStates, training_folder: Make) -> None:
    here, there = training_folder("here"), training_folder("there")
    save(here, 5)
    states.push(here)
    save(there, 10)
    before = content(there)
    assert states.pull(there) is None
    assert content(there) == before


def test_a_finished_training_is_finished_only_for_the_same_job(states: RemoteStates, training_folder: Make) -> None:
    here, there, longer = (training_folder(name) for name in ("here", "there", "longer"))
    save(here, 100)
    (here / "done.json").write_text("{}")
    (longer / "job.yaml").write_text("corpus: longer\ntraining: {updates: 200}\n")
    states.push(here)
    for folder in (there, longer):
        assert states.pull(folder) == 100
    assert (there / "done.json").exists()
    assert not (longer / "done.json").exists()


def test_old_states_are_pruned_and_share_what_did_not_change(
    states: RemoteStates, training_folder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, uploads = training_folder("here"), list[str]()
    upload = states.bucket.upload
    monkeypatch.setattr(states.bucket, "upload", lambda key, file: (uploads.append(key), upload(key, file)))
    for update in (5, 10, 15, 20):
        save(here, update)
        states.push(here)
        states.prune()
    assert states.updates() == [20, 15]
    assert KEPT == 2
    assert len(uploads) == len(set(uploads)), "an object was uploaded twice"
    objects = states.bucket.sizes("0123-4567/objects/")
    kept = {file.sha256 for update in (20, 15) for file in states._read(update).files.values()}
    assert objects.keys() == kept
    states.push(here)
    assert states.bucket.sizes("0123-4567/objects/") == objects


def test_until_its_manifest_is_there_a_state_is_not(
    states: RemoteStates, training_folder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at any of the uploads, the store has the state before."""
    here = training_folder("here")
    save(here, 5)
    states.push(here)
    save(here, 10)
    left = 0

    def dies(call: Callable[..., object]) -> Callable[..., object]:
        def call_until_dead(*given: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            return call(*given)

        return call_until_dead

    for name in ("upload", "write"):
        monkeypatch.setattr(states.bucket, name, dies(getattr(states.bucket, name)))
    kills = 0
    while states.updates() == [5]:
        # What an attempt has uploaded stays for the next one.
        left = min(1, kills)
        kills += 1
        with contextlib.suppress(KeyboardInterrupt):
            states.push(here)
    assert kills == 7, "five files and the manifest; the first attempt gets to none of them"
    assert states.updates() == [10, 5]


@pytest.mark.parametrize("damage", ["missing", "changed", "manifest", "names"])
def test_a_damaged_state_gives_way_to_the_one_before(
    states: RemoteStates, training_folder: Make, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = training_folder("here"), training_folder("there")
    for update in (5, 10):
        save(here, update)
        states.push(here)
    manifest = states._read(10)
    weights = states._object(manifest.files["resume/update-00000010/model.safetensors"])
    key = states._manifest(10)
    if damage == "missing":
        states.bucket.delete(weights)
    elif damage == "changed":
        states.bucket.write(weights, b"model.safetensors 01")
    elif damage == "manifest":
        states.bucket.write(key, b"{")
    else:
        states.bucket.write(key, manifest.model_dump_json().replace("resume/", "../resume/").encode())
    assert states.pull(there) == 5
    assert checkpoint.trained(there) == 5
    assert "update 10 in s3://" in capsys.readouterr().out
    # The damaged state does not stand in the way of those that follow.
    save(there, 8)
    states.push(there)
    states.prune()
    assert states.updates() == [8, 5]
    states.push(here)
    assert states.pull(training_folder("third")) == 10


def test_a_damaged_checkpoint_that_states_share_costs_no_state(
    states: RemoteStates, training_folder: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = training_folder("here"), training_folder("there")
    for update in (5, 10):
        save(here, update)
        states.push(here)
    shared = "checkpoints/update-00000005.safetensors"
    key = states._object(states._read(10).files[shared])
    assert key == states._object(states._read(5).files[shared])
    states.bucket.write(key, b"weights 6")
    assert states.pull(there) == 10
    assert f"has a damaged {shared}: the average will be without it" in capsys.readouterr().out
    assert [path.name for path in checkpoint.checkpoints(there / "checkpoints")] == ["update-00000010.safetensors"]
    assert states.updates() == [10, 5]


def test_a_download_that_was_damaged_once_is_repeated(
    states: RemoteStates, training_folder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = training_folder("here"), training_folder("there")
    save(here, 5)
    states.push(here)
    download, damaged = states.bucket.download, []

    def once(key: str, file: IO[bytes]) -> None:
        download(key, file)
        if not damaged:
            damaged.append(key)
            file.truncate(1)

    monkeypatch.setattr(states.bucket, "download", once)
    assert states.pull(there) == 5
    assert damaged


def test_a_machine_without_its_lease_publishes_no_state(states: RemoteStates, training_folder: Make) -> None:
    here = training_folder("here")
    save(here, 5)
    assert states.push(here, confirm=lambda: False) is None
    assert states.updates() == []
    assert states.push(here) == 5


def test_a_state_that_is_being_replaced_is_not_uploaded(
    states: RemoteStates, training_folder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training deletes a state file by file once the next is complete."""
    here = training_folder("here")
    save(here, 5)
    found = checkpoint.latest_resume

    def replaced(folder: Path) -> Path | None:
        state = found(folder)
        monkeypatch.setattr(checkpoint, "latest_resume", found)
        (here / "resume/update-00000005/optimizer.safetensors").unlink()
        (here / "resume/update-00000010").mkdir()
        return state

    monkeypatch.setattr(checkpoint, "latest_resume", replaced)
    assert states.push(here) is None
    assert states.updates() == []
