"""Where a training keeps its state, what it leaves for later stages, how a training ends."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
import yaml
from refusals import check_refusal
from text_lines import write_lines
from trainings import CONDITIONS, MakeJob

from nmt import hardware
from nmt.common import tensors
from nmt.common.processes import Interrupted
from nmt.errors import InputError
from nmt.training import chain
from nmt.training.settings import Job, TrainingSettings
from nmt.training.state import TrainState
from pipeline.config import paths
from pipeline.stages import train
from pipeline.trainings import identity
from pipeline.trainings.folder import check_whole, launch_and_watch, locked, write_job
from pipeline.trainings.outputs import write_outputs

Folder = Callable[..., Path]


@pytest.fixture
def repository(here: Path) -> None:
    """An empty repository of one binned file."""
    for name in ("nmt/code.py", "pipeline/config/paths.py", "pipeline/trainings/start.py"):
        Path(name).parent.mkdir(parents=True)
        Path(name).write_text("1")
    Path("dvc.yaml").write_text("stages: {train: {cmd: x, deps: [data/binned, nmt, pipeline/config]}}")
    paths.BINNED.mkdir(parents=True)
    (paths.BINNED / "train.00008.arrow").write_bytes(b"ids")


@pytest.fixture
def folder(repository: None) -> Folder:
    """The state folder of a job whose training settings are given."""

    def state(**training: Any) -> Path:
        settings = {"updates": 100, "tokens": 10, "resume_minutes": 1, "validate_every": 10}
        training = {**settings, **training}
        return identity.folder_of({"model": {}, "training": training, "vocabulary": 8, "corpus": str(paths.BINNED)})

    return state


def came_to(state: Path, update: int) -> None:
    (state / f"resume/update-{update:08d}").mkdir(parents=True)


def test_every_setting_names_the_state_or_is_listed_as_changing_no_weight(repository: None, tiny_job: MakeJob) -> None:
    """Another model or optimizer must not resume the weights of this one."""
    start = {"folder": "there", "weights": "0" * 64}
    job = {**Job.model_validate(tiny_job(start_from=start)).model_dump(), "corpus": ""}
    # The parent is named by the hash of its weights, the corpus by those of its files (another test).
    # A training can be extended; the others say what is written when.
    exempt = {"folder", "updates", "resume_minutes", "validate_every", "verify_every", "keep_states"}
    exempt.add("validation_sample")  # What is only looked at.
    before, seen = identity.folder_of(job), set[str]()
    sections = [job, job["model"], job["training"], job["training"]["start_from"]]
    assert [value for each in sections for value in each.values() if isinstance(value, dict)] == sections[1:]
    for section in sections:
        for name in section.keys() - {"model", "training", "start_from", "corpus"}:
            seen.add(name)
            value, section[name] = section[name], 987
            named = identity.folder_of(job) != before
            assert named != (name in exempt), name
            section[name] = value
    # Patience ends a training by its validations.
    job["training"]["patience"] = 2
    patient = identity.folder_of(job)
    job["training"]["validate_every"] += 1
    assert len({before, patient, identity.folder_of(job)}) == 3
    assert seen > {"d_model", "beta1", "seed", "weights", "vocabulary", "target_vocabulary", *exempt}


@pytest.mark.parametrize("name", ["train.00008.arrow", "valid.arrow"])
def test_other_text_names_another_state(folder: Folder, name: str) -> None:
    """The validation set is part of its curve."""
    (paths.BINNED / "valid.arrow").write_bytes(b"ids")
    state = folder()
    (paths.BINNED / "stats.json").write_text("{}")
    assert folder() == state
    (paths.BINNED / name).write_bytes(b"others")
    assert folder() != state


def test_more_updates_go_on_and_a_shorter_training_leaves_the_longer_one_alone(folder: Folder) -> None:
    state = folder(updates=100)
    came_to(state, 100)
    assert folder(updates=100_000) == folder(updates=100) == state
    came_to(state, 30_000)
    assert folder(updates=50_000) == state
    shorter = folder(updates=500)
    assert shorter != state
    came_to(shorter, 500)
    assert folder(updates=500) == shorter
    assert folder(updates=100_000) == state


def test_across_code_the_exact_state_precedes_the_furthest(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    first = folder()
    came_to(first, 20)
    Path("nmt/code.py").write_text("2")
    second = folder()
    came_to(second, 10)
    Path("nmt/code.py").write_text("3")
    third = folder()
    assert len({first, second, third}) == 3
    monkeypatch.setenv("WMT_RESUME_ACROSS_CODE", "1")
    assert folder() == first
    assert folder(updates=15) == second, "the other is too long"
    came_to(third, 5)
    assert folder() == third


@pytest.fixture
def finished(here: Path, tiny_job: MakeJob) -> Path:
    """The state of a finished training, with what a kill may have left, in an empty repository."""
    state = here / "work/train/abc-def"
    names = [f"resume/update-{update:08d}/model.safetensors" for update in (9, 12)]
    names += [f"checkpoints/update-{update:08d}.safetensors" for update in (6, 12)]
    for name in (*names, "checkpoints/.update-00000012.safetensors.there.1.tmp", "checkpoints/notes"):
        (state / name).parent.mkdir(parents=True, exist_ok=True)
        tensors.save_tensors(state / name, {name: torch.zeros(1)})
    (state / "done.json").touch()
    gpu = {"NVIDIA H100 80GB HBM3": 10.0}
    counts = {"update": 12, "updates": 12, "validate_every": 12, "processes": 1}
    saved = TrainState(**counts, seconds=9.0, device_seconds=gpu, conditions=CONDITIONS)
    (state / "resume/update-00000012/state.json").write_text(saved.model_dump_json())
    each = {"nll": 2.0, "ppl": 7.4, "learning_rate": 0.1, "gradient_norm": 1.0}
    records = [
        {"update": 6, "loss": 3.0, "seconds": 1.0, **each},
        {"update": 12, "valid_loss": 2.0, "valid_ppl": 7.4, "seconds": 1.25},
        {"update": 12, "seconds": 1.5, "outputs": {"3": [5, 6]}, "sample": {"1": [7]}},
        {"update": 12, "loss": 2.5, "seconds": 1.75, **each},
    ]
    (state / "job.yaml").write_text(yaml.safe_dump({**tiny_job(updates=12), "corpus": "here"}))
    write_lines(state / "history.jsonl", map(json.dumps, records))
    settings = TrainingSettings.model_validate(tiny_job(updates=12)["training"])
    for number in (6, 12):
        weights = {f"checkpoints/update-{number:08d}.safetensors": torch.zeros(1)}
        chain.add_link(state, settings, number, [weights, {}], CONDITIONS)
    with (state / "history.jsonl").open("a") as file:
        file.write('{"upd')
    return state


def outputs() -> dict[str, str]:
    folder = {path.name: path.read_text() for path in paths.CHECKPOINTS.iterdir()}
    others = (paths.TRAINING, paths.CURVES, paths.VALIDATION, paths.VALIDATION_OUTPUTS, paths.CHAIN)
    return {**folder, **{path.name: path.read_text() for path in others}}


def test_after_an_edit_of_shared_code_a_finished_training_ends_at_once(
    folder: Folder, finished: Path, monkeypatch: pytest.MonkeyPatch, tiny_job: MakeJob
) -> None:
    """Adding a stage edits it, and reruns the stage `train`; an edit of what computes the weights trains anew."""
    given = {**tiny_job(), "vocabulary": 77}
    monkeypatch.setattr(train, "load_section", lambda name, section: section.model_validate(given[name]))
    (paths.BINNED / "stats.json").write_text('{"vocabulary": 77}')
    asked: list[Any] = []

    def torchrun(state: Path, watch: Callable[[], None]) -> int:
        asked.append(yaml.safe_load((state / "job.yaml").read_text()))
        shutil.copytree(finished, state, dirs_exist_ok=True, ignore=lambda *_: ["job.yaml"])
        return 0

    def run(follow: Any = nullcontext) -> dict[str, str]:
        train.run(torchrun, lambda updates: asked.append(updates) or MagicMock(), follow)
        return outputs()

    before = run()
    expected = Job.model_validate({**given, "corpus": str(paths.BINNED.resolve())}).model_dump(exclude_defaults=True)
    assert asked == [given["training"]["updates"], expected]
    Path("pipeline/config/paths.py").write_text("2")
    assert run() == before
    assert len(asked) == 2
    # With a store, whoever uploads is asked also when the training is done.
    monkeypatch.setenv("WMT_STATE", "s3://bucket/prefix")
    run()
    assert len(asked) == 4
    monkeypatch.delenv("WMT_STATE")
    for name in ("nmt/code.py", "pipeline/trainings/start.py"):
        Path(name).write_text("2")
        run()
    assert len(asked) == 8
    # What fails after the training is told, too.
    Path("nmt/code.py").write_text("3")
    follow = MagicMock()
    monkeypatch.setattr(train, "write_outputs", MagicMock(side_effect=OSError(errno.ENOSPC, "No room")))
    with pytest.raises(OSError, match="No room"):
        run(follow)
    assert OSError in follow.return_value.__exit__.call_args.args


@pytest.mark.parametrize("same_disk", [True, False])
def test_checkpoints_and_curves_are_handed_on(finished: Path, monkeypatch: pytest.MonkeyPatch, same_disk: bool) -> None:
    if not same_disk:
        monkeypatch.setattr(os, "link", MagicMock(side_effect=OSError(errno.EXDEV, "Invalid cross-device link")))
    write_outputs(finished, Path())
    written = outputs()
    weights = {path.name: next(iter(tensors.load_tensors(path))) for path in paths.CHECKPOINTS.iterdir()}
    assert weights == {
        "update-00000006.safetensors": "checkpoints/update-00000006.safetensors",
        "update-00000012.safetensors": "checkpoints/update-00000012.safetensors",
        "last.safetensors": "resume/update-00000012/model.safetensors",
    }
    source = finished / "resume/update-00000012/model.safetensors"
    assert (paths.CHECKPOINTS / "last.safetensors").samefile(source) == same_disk
    assert [line.split(",")[0] for line in written["training.csv"].splitlines()] == ["update", "6", "12"]
    assert written["validation.jsonl"] == '{"update": 12, "outputs": {"3": [5, 6]}, "sample": {"1": [7]}}\n'
    recorded = json.loads(written["chain.json"])
    assert (recorded["state"], recorded["code"], recorded["data"]) == ("abc-def", "def", {})
    assert "corpus" not in recorded["job"]
    assert [link["update"] for link in recorded["links"]] == [6, 12]
    gpu = "NVIDIA H100 80GB HBM3"
    summary = json.loads(written["training.json"])
    assert summary["flops_sustained"] == {gpu: hardware.sustained(gpu)}
    assert (summary["updates"], summary["train_seconds"]) == (12, 9.0), "of the saved state"


def test_a_damaged_chain_or_checkpoint_is_told(finished: Path) -> None:
    check_whole(finished)
    path = finished / "chain.jsonl"
    before = path.read_text()
    first, second = before.splitlines(keepends=True)
    for damaged in (first + second.replace('"weights": "', '"weights": "f'), f"[{before[1:]}"):
        path.write_text(damaged)
        check_refusal("the chain of hashes, was damaged: bring it back", check_whole, finished)
    path.write_text(f"{before}{{")  # As a kill leaves it.
    check_whole(finished)
    kept = finished / "checkpoints/update-00000012.safetensors"
    tensors.save_tensors(kept, {"a": torch.ones(1)})
    for content, sentence in ((kept.read_bytes(), "it does not have the weights that chain.jsonl recorded"), (b"", "")):
        kept.write_bytes(content)
        check_refusal(f"00000012.safetensors was damaged: {sentence}", check_whole, finished)


@pytest.mark.parametrize(
    ("number", "old", "new"),
    [
        # Each a bit or a few.
        (0, "3.0", "3.5"), (0, '"update": 6', '"update": 7'), (0, '"nll"', '"nlm"'), (1, "7.4", "7.5"),
        (1, '"valid_loss"', '"walid_loss"'), (2, '"seconds"', '"secondz"'), (3, "{", "["), (3, "\n", "*"),
    ],
)  # fmt: skip
def test_a_damaged_loss_is_told(finished: Path, number: int, old: str, new: str) -> None:
    path = finished / "history.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lines[number] = lines[number].replace(old, new, 1)
    path.write_text("".join(lines))
    check_refusal(r"history.jsonl was damaged: its losses are not those that chain.jsonl rec", check_whole, finished)


def test_losses_after_the_saved_state_may_be_lost(finished: Path) -> None:
    """As in a power failure: they are measured again."""
    shutil.rmtree(finished / "resume/update-00000012")
    path = finished / "history.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:1]))
    check_whole(finished)


def test_preparing_writes_the_job_and_drops_what_another_attempt_left(tmp_path: Path) -> None:
    def attempt(updates: int = 10, corpus: str = "here") -> bool:
        for name in ("interrupted", "failed.json", "done.json"):
            (tmp_path / name).touch()
        job = {"training": {"updates": updates}, "corpus": corpus}
        write_job(tmp_path, job)
        assert yaml.safe_load((tmp_path / "job.yaml").read_text()) == job
        assert not any((tmp_path / name).exists() for name in ("interrupted", "failed.json"))
        return (tmp_path / "done.json").exists()

    came_to(tmp_path, 3)
    assert not attempt()
    assert attempt(), "the same job"
    assert attempt(corpus="there"), "the same job elsewhere"
    assert not attempt(updates=11)
    for damaged in ("", "a: ["):
        (tmp_path / "job.yaml").write_text(damaged)
        assert not attempt(updates=11)
    hashes = tmp_path / "resume/update-00000003/sha256.json"
    for content, whole in (("{}", True), ('{"sha256.json": "0"}', False)):
        hashes.write_text(content)
        assert attempt(updates=11) == whole, "of a damaged state nothing is handed on"
    shutil.rmtree(tmp_path / "resume")
    assert not attempt(updates=11), "without its weights a training is not finished"


def test_a_state_is_held_by_one_process(tmp_path: Path) -> None:
    with locked(tmp_path / "state"):
        with pytest.raises(BlockingIOError, match="another process is at this training") as caught:
            locked(tmp_path / "state")
        assert caught.value.filename == str(tmp_path / "state")
    with locked(tmp_path / "state"):
        pass


REFUSED = {"failed.json": '{"state": "refused", "error": "mend this"}'}
FULL = {"failed.json": '{"state": "failed", "error": "OSError", "errno": 28, "file": "resume/x"}'}
FAILED = {"failed.json": '{"state": "failed", "error": "a bug"}'}


@pytest.mark.parametrize(
    ("left", "status", "kind", "message"),
    [
        (REFUSED, 1, InputError, "mend this"),
        ({**FAILED, "interrupted": ""}, 1, ChildProcessError, "a training process failed: a bug; its output is above"),
        ({"interrupted": ""}, 1, Interrupted, "a training process was asked to stop"),
        ({}, 1, Interrupted, "a training process was lost"),
        ({}, 137, Interrupted, "a training process was killed by signal 9, probably because memory ran out"),
        ({}, -9, Interrupted, "a training process was killed by signal 9, probably because memory ran out"),
        ({}, 139, Interrupted, "a training process was killed by signal 11"),
        ({}, 143, Interrupted, "torchrun was asked to stop"),
        *(({}, status, ChildProcessError, "the training cannot start; its output is above") for status in (70, 2)),
        (FULL, 1, OSError, ".Errno 28. No space left on device: 'resume/x'"),
        ({}, 73, OSError, ".Errno 28. a training process failed and could not write why, .*; see above.*"),
    ],
)
def test_why_a_training_ended_is_told(
    tmp_path: Path, left: dict[str, str], status: int, kind: type[Exception], message: str
) -> None:
    def ended(state: Path, watch: Callable[[], None]) -> int:
        for name, content in left.items():
            (state / name).write_text(content)
        return status

    with pytest.raises(kind, match=f"^{message}$"):
        launch_and_watch(tmp_path, ended, lambda *_: None)


@pytest.mark.parametrize(
    ("left", "kind"), [(REFUSED, InputError), (FULL, OSError), ({"interrupted": ""}, Interrupted), (FAILED, None)]
)
def test_an_error_of_the_users_and_a_stop_of_one_process_end_the_others_at_once(
    tmp_path: Path, left: dict[str, str], kind: type[Exception] | None
) -> None:
    """torchrun would start them again, a hundred times on several nodes; so it may after a fault."""

    def torchrun(state: Path, watch: Callable[[], None]) -> int:
        for name, content in left.items():
            (state / name).write_text(content)
        watch()
        assert kind is None, "nobody stopped it"
        (state / "done.json").touch()
        return 0

    with nullcontext() if kind is None else pytest.raises(kind):
        launch_and_watch(tmp_path, torchrun, lambda *_: None)


def test_what_training_measures_is_shown_while_it_runs(tmp_path: Path) -> None:
    """Nothing of an earlier attempt, and nothing before the state that is resumed."""
    history, shown = tmp_path / "history.jsonl", list[int]()
    write_lines(history, [f'{{"update": {update}}}' for update in (10, 20, 25)])

    def torchrun(state: Path, watch: Callable[[], None]) -> int:
        assert state == tmp_path
        came_to(state, 20)  # It may come from a store.
        watch()
        history.rename(tmp_path / "earlier.jsonl")
        write_lines(history, [f'{{"update": {update}}}' for update in (10, 20)])
        watch()
        assert shown == [20]
        with history.open("a") as file:
            file.write('{"update": 30}\n')
        (tmp_path / "done.json").touch()
        return 0

    launch_and_watch(tmp_path, torchrun, lambda update, record: shown.append(update))
    assert shown == [20, 30]
