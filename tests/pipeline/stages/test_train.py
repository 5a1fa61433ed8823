"""Where a training keeps its state: what decides the weights names it, and a longer one is never taken back.

What it leaves for the stages after it, also after kills; and how it ends.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from kills import every_kill

from nmt import flops
from nmt.config import InputError
from pipeline.commands import join
from pipeline.common.stage import Interrupted
from pipeline.stages import train

Folder = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """The state folder of a job whose training settings are given, in an empty repository of one binned file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WMT_STATE", raising=False)
    monkeypatch.delenv("WMT_RESUME_ACROSS_CODE", raising=False)
    for name in ("nmt/code.py", "pipeline/common/paths.py", "pipeline/stages/train.py"):
        Path(name).parent.mkdir(parents=True)
        Path(name).write_text("1")
    Path("dvc.yaml").write_text("stages: {train: {cmd: x, deps: [data/binned, nmt, pipeline/common, pipeline/stages]}}")
    train.BINNED.mkdir(parents=True)
    (train.BINNED / "train.00008.arrow").write_bytes(b"ids")

    def state(**training: Any) -> Path:
        settings = {"updates": 100, "tokens": 10, "resume_minutes": 1, "validate_every": 10, "patience": None}
        return train.state_folder({"model": {}, "training": {**settings, **training}, "vocabulary": 8})

    return state


def came_to(state: Path, update: int) -> None:
    (state / f"resume/update-{update:08d}").mkdir(parents=True)


def test_more_updates_go_on_and_other_settings_start_anew(folder: Folder) -> None:
    state = folder()
    came_to(state, 100)
    assert folder(updates=200) == state
    assert folder(validate_every=20, resume_minutes=9, verify_every=3, keep_states=1) == state
    assert folder(fork={"update": 3, "link": "0" * 64}) != state
    assert folder(tokens=20) != state


def test_a_shorter_training_leaves_the_longer_one_alone(folder: Folder) -> None:
    state = folder(updates=100_000)
    came_to(state, 30_000)
    assert folder(updates=50_000) == state
    shorter = folder(updates=500)
    assert shorter != state
    came_to(shorter, 500)
    assert folder(updates=500) == shorter
    assert folder(updates=100_000) == state


def test_patience_names_the_state_because_it_decides_where_training_ends(folder: Folder) -> None:
    assert len({folder(), folder(patience=2), folder(patience=3), folder(patience=2, validate_every=20)}) == 4


def test_across_code_the_exact_state_comes_first_and_then_the_furthest(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = folder()
    came_to(first, 20)
    Path("nmt/code.py").write_text("2")
    second = folder()
    came_to(second, 10)
    Path("nmt/code.py").write_text("3")
    third = folder()
    monkeypatch.setenv("WMT_RESUME_ACROSS_CODE", "1")
    assert folder() == first
    came_to(third, 5)
    assert folder() == third


def test_code_that_all_stages_share_leaves_a_training_as_it_is(folder: Folder) -> None:
    """A new stage edits it, and the stage `train` is run again: it must find its training."""
    state = folder()
    Path("pipeline/common/paths.py").write_text("2")
    assert folder() == state
    Path("pipeline/stages/train.py").write_text("2")
    assert folder() != state


def test_after_an_edit_of_shared_code_a_finished_training_ends_at_once(
    folder: Folder, finished: Path, monkeypatch: pytest.MonkeyPatch, tiny_job: Callable[..., dict[str, Any]]
) -> None:
    given = {**tiny_job(), "vocabulary": 77}
    monkeypatch.setattr(train, "load_section", lambda name, section: section.model_validate(given[name]))
    (train.BINNED / "stats.json").write_text('{"vocabulary": 77}')

    def torchrun(state: Path, watch: Callable[[], None]) -> int:
        (finished / "job.yaml").unlink()
        shutil.copytree(finished, state, dirs_exist_ok=True)
        return 0

    def refused(state: Path, watch: Callable[[], None]) -> int:
        raise AssertionError(f"{state} is trained again")

    train.run(Listener(), torchrun, lambda updates: Silent())
    before = published()
    Path("pipeline/common/paths.py").write_text("2")
    train.run(Listener(), refused, lambda updates: Silent())
    assert published() == before
    Path("nmt/code.py").write_text("2")
    with pytest.raises(AssertionError, match="is trained again"):
        train.run(Listener(), refused, lambda updates: Silent())


def test_a_further_machine_has_the_code_of_the_first(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WMT_NODES", "2")
    monkeypatch.setenv("WMT_RENDEZVOUS", "first:29400")
    state = folder()
    state.mkdir(parents=True)
    (state / "job.yaml").touch()
    Path("nmt/code.py").write_text("2")
    with pytest.raises(
        InputError, match="is trained with other code than this machine has: check out the first node's"
    ):
        join.join(state, 1.0)


def test_what_a_process_refuses_is_told_at_once(tmp_path: Path) -> None:
    """torchrun would start it again, a hundred times on several nodes."""
    train.raise_if_refused(tmp_path)
    (tmp_path / "failed.json").write_text('{"state": "failed", "error": "a bug"}')
    train.raise_if_refused(tmp_path)
    (tmp_path / "failed.json").write_text('{"state": "refused", "error": "mend this"}')
    with pytest.raises(InputError, match="mend this"):
        train.raise_if_refused(tmp_path)


class Listener:
    """A tracker that keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[dict[str, float], int | None]] = []
        self.facts: dict[str, str] = {}

    def metrics(self, values: Mapping[str, float], update: int | None = None) -> None:
        self.heard.append((dict(values), update))

    def tags(self, values: Mapping[str, str]) -> None:
        self.facts |= values

    def artifact(self, path: Path, folder: str | None = None) -> None:
        raise AssertionError("training hands on no files")


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state of a finished training, with what a kill may have left, in an empty repository."""
    monkeypatch.chdir(tmp_path)
    state = tmp_path / "work/train/abc-def"
    for name in (
        "resume/update-00000009/model.safetensors",
        "resume/update-00000012/model.safetensors",
        "checkpoints/update-00000006.safetensors",
        "checkpoints/update-00000012.safetensors",
        "checkpoints/.update-00000012.safetensors.there.1.tmp",
        "checkpoints/notes",
    ):
        (state / name).parent.mkdir(parents=True, exist_ok=True)
        (state / name).write_text(name)
    done = {
        "updates": 12,
        "device": "cpu",
        "precision": "float32",
        "loss": 9.0,
        "processes": 2,
        "device_seconds": {"NVIDIA H100 80GB HBM3": 10.0},
    }
    (state / "done.json").write_text(json.dumps(done))
    records = [
        {"update": 6, "loss": 3.0, "seconds": 1.0},
        {"update": 12, "valid_loss": 2.0, "valid_ppl": 7.4},
        {"update": 12, "loss": 2.5},
    ]
    (state / "job.yaml").write_text(yaml.safe_dump(job(updates=12)))
    links = [{"update": 6, "link": "a"}, {"update": 12, "link": "b"}]
    (state / "chain.jsonl").write_text("".join(json.dumps(link) + "\n" for link in links))
    (state / "history.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records) + '{"upd')
    return state


def published() -> dict[str, str]:
    folder = {path.name: path.read_text() for path in train.CHECKPOINTS.iterdir()}
    others = (train.TRAINING, train.CURVES, train.VALIDATION, train.CHAIN)
    return {**folder, **{path.name: path.read_text() for path in others}}


def test_checkpoints_summary_and_curves_are_handed_on(finished: Path) -> None:
    tracker = Listener()
    train.publish(finished, tracker)
    found = published()
    assert found.keys() == {
        "update-00000006.safetensors",
        "update-00000012.safetensors",
        "last.safetensors",
        "training.json",
        "training.csv",
        "validation.csv",
        "chain.json",
    }
    assert found["last.safetensors"] == "resume/update-00000012/model.safetensors"
    assert found["update-00000006.safetensors"] == "checkpoints/update-00000006.safetensors"
    assert (train.CHECKPOINTS / "last.safetensors").samefile(finished / "resume/update-00000012/model.safetensors")
    assert found["training.csv"] == "update,loss\n6,3.0\n12,2.5\n"
    assert found["validation.csv"] == "update,valid_loss,valid_ppl\n12,2.0,7.4\n"
    chain = json.loads(found["chain.json"])
    assert (chain["state"], chain["code"], chain["data"]) == ("abc-def", "def", {})
    assert "corpus" not in chain["job"]
    assert [link["update"] for link in chain["links"]] == [6, 12]
    summary = json.loads(found["training.json"])
    sustained = flops.sustained("NVIDIA H100 80GB HBM3")
    assert summary["flops_sustained"] == {"NVIDIA H100 80GB HBM3": sustained}
    assert summary["flops_paper"] == pytest.approx(10.0 * sustained)
    # `loss` has a curve: a point at no update would bend it.
    assert tracker.heard == [({"updates": 12, "processes": 2, "flops_paper": summary["flops_paper"]}, None)]
    assert tracker.facts == {"device": "cpu", "precision": "float32"}


def test_on_another_disk_checkpoints_are_copied(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refused)
    train.publish(finished, Listener())
    last = train.CHECKPOINTS / "last.safetensors"
    assert last.read_text() == "resume/update-00000012/model.safetensors"
    assert last.stat().st_nlink == 1


def test_a_finished_training_without_a_state_is_told(finished: Path) -> None:
    shutil.rmtree(finished / "resume")
    with pytest.raises(InputError, match=r"abc-def is finished, but its resume/ is empty: .* --free abc-def"):
        train.publish(finished, Listener())


def test_killed_at_any_call_it_hands_on_the_same_when_run_again(finished: Path, tmp_path: Path) -> None:
    train.publish(finished, Listener())
    expected = published()
    state = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    # Before, another training's results stood there.
    for path in (train.CHECKPOINTS / "update-00000006.safetensors", train.TRAINING, train.CURVES):
        path.unlink()
        path.write_text("another's")
    before = published()
    shutil.copytree("models", "before/models")
    shutil.copytree("results", "before/results")
    kills = 0
    # Every second point is every state of the disk between two calls: before a call it is that after the call before.
    points = every_kill(lambda _: lambda: train.publish(finished, Listener()), step=2)
    for kills, (_, point) in enumerate(points, start=1):
        now = published() if train.CHECKPOINTS.exists() else {}
        assert all(content in (before.get(name), expected[name]) for name, content in now.items()), point
        assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == state
        if kills % 8 == 0:
            train.publish(finished, Listener())
            assert published() == expected
            assert [path.name for path in tmp_path.glob("*/.*")] == []
        for name in ("models", "results"):
            shutil.rmtree(name)
            shutil.copytree(f"before/{name}", name)
    assert kills > 40


def job(updates: int = 10, corpus: str = "here", **training: Any) -> dict[str, Any]:
    return {"model": {"N": 1}, "training": {"updates": updates, **training}, "vocabulary": 8, "corpus": corpus}


def test_preparing_writes_the_job_and_drops_what_another_attempt_left(tmp_path: Path) -> None:
    folder = ".update-00000006.there.1"
    for name in (
        "interrupted",
        "failed.json",
        "done.json",
        ".done.json.there.1.tmp",
        "resume/update-00000003/f",
        f"resume/{folder}.old/f",
        f"resume/{folder}.tmp/f",
        "checkpoints/.a.there.1.tmp",
        "skipped.tmp",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    train.write_job(tmp_path, job())
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == {
        "job.yaml",
        "done.json",
        "resume/update-00000003/f",
        f"resume/{folder}.old/f",
        "skipped.tmp",
    }
    assert not (tmp_path / f"resume/{folder}.tmp").exists()
    # The same job elsewhere is the same.
    train.write_job(tmp_path, job(corpus="there"))
    assert (tmp_path / "done.json").exists()
    assert yaml.safe_load((tmp_path / "job.yaml").read_text()) == job(corpus="there")
    assert list(yaml.safe_load((tmp_path / "job.yaml").read_text())) == ["model", "training", "vocabulary", "corpus"]
    train.write_job(tmp_path, job(updates=11))
    assert not (tmp_path / "done.json").exists()
    train.write_job(tmp_path, job(updates=12))


def test_preparing_bears_a_torchrun_that_removes_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".torchrun.1.tmp").mkdir()
    remove = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", lambda path: (remove(path), remove(path)))
    train.write_job(tmp_path, job())
    assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]


def test_a_state_is_held_by_one_process(tmp_path: Path) -> None:
    with train.locked(tmp_path / "state"):
        with (
            pytest.raises(BlockingIOError, match="another process is at this training") as caught,
            train.locked(tmp_path / "state"),
        ):
            pass
        assert caught.value.filename == str(tmp_path / "state")
    with train.locked(tmp_path / "state"):
        pass


def test_new_records_are_read_once_and_a_rewritten_history_anew(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history = train.HistoryReader(path)
    assert list(history.new()) == []
    path.write_text('{"update": 1}\n{"update": 2}\n{"upd')
    assert list(history.new()) == [{"update": 1}, {"update": 2}]
    assert list(history.new()) == []
    with path.open("a") as file:
        file.write('ate": 3}\n')
    assert list(history.new()) == [{"update": 3}]
    path.write_text('{"update": 1}\n')
    assert list(history.new()) == [{"update": 1}]
    # After a power failure, until the training resumes and writes it anew.
    with path.open("a") as file:
        file.write("\0\0\n")
    assert list(history.new()) == list(history.new()) == []
    path.write_text('{"update": 1}\n{"update": 2}\n')
    assert list(history.new()) == [{"update": 2}]


class Silent:
    """Progress that only notes what it is shown."""

    def __init__(self) -> None:
        self.shown: list[int] = []

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None: ...

    def show(self, update: int, record: Mapping[str, float]) -> None:
        self.shown.append(update)


@pytest.mark.parametrize(
    ("left", "kind", "message"),
    [
        ({"failed.json": '{"state": "refused", "error": "mend this"}'}, InputError, "mend this"),
        (
            {"failed.json": '{"state": "failed", "error": "a bug"}', "interrupted": ""},
            ChildProcessError,
            "a training process failed: a bug; its output is above",
        ),
        ({"interrupted": ""}, Interrupted, "a training process was asked to stop"),
        ({}, Interrupted, "a training process was lost"),
        ({"status": "73"}, ChildProcessError, "a training process failed and could not write why: .*; see above"),
    ],
)
def test_why_a_training_ended_is_told(
    tmp_path: Path, left: dict[str, str], kind: type[Exception], message: str
) -> None:
    def ended(state: Path, watch: Callable[[], None]) -> int:
        for name, content in left.items():
            (state / name).write_text(content)
        return int(left.get("status", 1))

    with pytest.raises(kind, match=f"^{message}$"):
        train.train(tmp_path, Listener(), ended, Silent())


def test_what_training_measures_is_handed_on_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the tracker, and to the tables that `dvc plots show` draws."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "CURVES_SECONDS", 0.0)
    tracker, history = Listener(), tmp_path / "history.jsonl"

    def torchrun(state: Path, watch: Callable[[], None]) -> int:
        assert state == tmp_path
        watch()
        history.write_text('{"update": 1, "valid_loss": 3.0, "valid_ppl": 20.1}\n')
        watch()
        assert tracker.heard == [({"valid_loss": 3.0, "valid_ppl": 20.1}, 1)]
        assert train.VALIDATION.read_text() == "update,valid_loss,valid_ppl\n1,3.0,20.1\n"
        with history.open("a") as file:
            file.write('{"update": 2, "valid_loss": 2.0, "valid_ppl": 7.4}\n')
        (tmp_path / "done.json").touch()
        return 0

    progress = Silent()
    train.train(tmp_path, tracker, torchrun, progress)
    assert progress.shown == [1, 2]
    assert tracker.heard[1:] == [({"valid_loss": 2.0, "valid_ppl": 7.4}, 2)]


def test_a_stop_of_one_process_ends_the_others(tmp_path: Path) -> None:
    def torchrun(state: Path, watch: Callable[[], None]) -> int:
        (tmp_path / "interrupted").touch()
        watch()
        raise AssertionError("nobody stopped it")

    with pytest.raises(Interrupted, match="was asked to stop"):
        train.train(tmp_path, Listener(), torchrun, Silent())


def test_a_run_trains_once_and_hands_on_each_time(
    finished: Path, monkeypatch: pytest.MonkeyPatch, tiny_job: Callable[..., dict[str, Any]]
) -> None:
    job = {**tiny_job(), "vocabulary": 77, "corpus": str(train.BINNED.resolve())}
    (finished / "job.yaml").unlink()
    calls: list[Any] = []
    monkeypatch.setattr(train, "load_section", lambda name, section: section.model_validate(job[name]))
    monkeypatch.setattr(train, "state_folder", lambda job: calls.append(job) or finished)
    train.BINNED.mkdir(parents=True)
    (train.BINNED / "stats.json").write_text('{"vocabulary": 77}')

    def torchrun(state: Path, watch: Callable[[], None]) -> int:
        (finished / "done").rename(state / "done.json")
        return 0

    train.run(Listener(), torchrun, lambda updates: calls.append(updates) or Silent())
    assert calls == [job]
    assert yaml.safe_load((finished / "job.yaml").read_text()) == job
    (finished / "done.json").rename(finished / "done")
    train.run(Listener(), torchrun, lambda updates: calls.append(updates) or Silent())
    assert calls[1:] == [job, 30]
    # Where a store is set, whoever uploads is asked also when the training is done.
    monkeypatch.setenv("WMT_STATE_STORE", "s3://bucket/prefix")
    train.run(Listener(), lambda *_: calls.append("asked") or 0, lambda updates: Silent())
    assert calls[3:] == [job, "asked"]
    assert published().keys() >= {"last.safetensors", "training.json"}
