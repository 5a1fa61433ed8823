"""Training: it learns, resumes to the bit, keeps what it should, and no bad gradient reaches the weights."""

import copy
import errno
import fcntl
import json
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import yaml
from refusals import check_refusal
from trainings import ALONE, CONDITIONS, MakeJob, final_weights, logged, run, same, stopped, write_arrow

from nmt.common import tensors
from nmt.common.processes import TRAINERS, UNRECORDED
from nmt.flops import LengthSums, parameters, training_flops
from nmt.model_settings import ModelSettings
from nmt.training import checkpoint, loop, state
from nmt.training.batches import Corpus, train_files, updates
from nmt.training.chain import read_chain
from nmt.training.distributed import World
from nmt.training.history import read_history
from nmt.training.loop import stand_by, stop_on_signals
from nmt.training.settings import Job
from nmt.training.trainer import Trainer

GPU = {"device": "NVIDIA H100", "processor": "", "threads": 0, "deterministic": False}


def test_translations_change_no_weight(tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    job = tiny_job(updates=4, validate_every=2, validation_sample=5, verify_every=1)
    assert run(job, tmp_path / "with")
    assert [*map(len, logged(tmp_path / "with", "sample"))] == [5, 5]
    monkeypatch.setattr(Trainer, "translate_examples", lambda *_: {})
    assert run(tiny_job(updates=4, validate_every=2, verify_every=1), tmp_path / "without")
    assert same(final_weights(tmp_path / "with"), final_weights(tmp_path / "without"))
    assert (logged(tmp_path / "without", "outputs"), logged(tmp_path / "without", "sample")) == ([{}, {}], [])
    assert read_chain(tmp_path / "with/chain.jsonl") == read_chain(tmp_path / "without/chain.jsonl")


@pytest.mark.parametrize(
    ("changes", "stops"),
    [
        ({"updates": 18}, [7, 8, 13]),
        ({"updates": 18, "ema_decay": 0.6}, [1, 8]),
        # Every second update has a record: the stop is between two.
        ({"updates": 200, "shards": 1, "validate_every": 200, "checkpoint_every": 200}, [7]),
    ],
)
def test_a_stop_changes_no_bit(tmp_path: Path, tiny_job: MakeJob, changes: dict[str, Any], stops: list[int]) -> None:
    job = tiny_job(**changes)
    folders = tmp_path / "undisturbed", tmp_path / "disturbed"
    for folder in folders:
        folder.mkdir()
        (folder / "last_update").write_text("18")
    stopped(job, folders[1], *stops)
    measured, results = ("update", "loss", "nll", "tokens", "gradient_norm", "padding", "valid_loss", "outputs"), []
    for folder in folders:
        assert run(job, folder)
        curve = [[record.get(key) for key in measured] for record in read_history(folder / "history.jsonl")]
        assert curve[0][0] == (2 if changes["updates"] == 200 else 1)
        kept = {path.name: path.read_bytes() for path in checkpoint.checkpoints(folder / "checkpoints")}
        results.append((curve, kept, read_chain(folder / "chain.jsonl")))
    assert results[0] == results[1]
    assert same(*map(final_weights, folders))


def test_a_gradient_that_is_not_finite_changes_nothing(tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither weights nor moments, and it counts as diverged: an infinite norm as one that is no number."""
    job = Job.model_validate(tiny_job())
    trainer = Trainer(job, ALONE)
    norms = iter([torch.tensor(norm) for norm in (1.0, math.inf, 3.0, math.nan)])
    monkeypatch.setattr(torch.nn.utils, "get_total_norm", lambda _: next(norms))
    for update in trainer.updates(Corpus(train_files(Path(job.corpus))), 4):
        before = copy.deepcopy([trainer.model.state_dict(), state.moments(trainer.model, trainer.optimizer)])
        trainer.step(update)
        after = [trainer.model.state_dict(), state.moments(trainer.model, trainer.optimizer)]
        assert [*map(same, before, after)] == [update.number in {2, 4}] * 2
    interval = trainer.measured.take_interval()
    assert (interval.skipped, interval.norm, trainer.measured.state.last_finite) == (2, 4.0, 3)


def test_a_damaged_state_is_passed_over(tmp_path: Path, tiny_job: MakeJob, capsys: pytest.CaptureFixture[str]) -> None:
    job = tiny_job(updates=12, keep_states=2, verify_every=4)
    assert run(job, tmp_path / "whole")
    stopped(job, tmp_path / "stopped", 10)
    names = ("model.safetensors", "optimizer.safetensors", "state.json")
    for name, damage in [*((name, "byte") for name in names), (names[0], "cut"), (names[1], "gone")]:
        folder = shutil.copytree(tmp_path / "stopped", tmp_path / f"{name}-{damage}")
        path = checkpoint.states(folder)[-1]
        content = bytearray((path / name).read_bytes())
        content[-3] ^= 1
        (path / name).unlink()
        if damage != "gone":
            (path / name).write_bytes(content if damage == "byte" else content[:-9])
        capsys.readouterr()
        assert run(job, folder)
        told = capsys.readouterr().out
        assert f"{path} is damaged and removed" in told
        assert "resuming after update 8 of 12" in told
        assert same(final_weights(tmp_path / "whole"), final_weights(folder))
        assert [*map(checkpoint.update_of, checkpoint.states(folder))] == [4, 8, 12]


def test_without_a_whole_state_nothing_is_lost(tmp_path: Path, tiny_job: MakeJob) -> None:
    job = tiny_job(updates=12, keep_states=0)
    stopped(job, tmp_path / "run", 10)
    (path,) = (tmp_path / "run/resume").iterdir()
    (path / "sha256.json").write_text("{")
    before = (tmp_path / "run/history.jsonl").read_bytes()
    check_refusal("then remove that folder to start this training again", run, job, tmp_path / "run")
    assert (tmp_path / "run/history.jsonl").read_bytes() == before


def test_a_training_does_not_end_where_it_was_stopped(tmp_path: Path, tiny_job: MakeJob) -> None:
    """That update was neither validated nor reported."""
    stopped(tiny_job(updates=30), tmp_path / "run", 7)
    check_refusal("stopped after update 7, and not", run, tiny_job(updates=7), tmp_path / "run")
    assert run(tiny_job(updates=8), tmp_path / "run")


def test_a_state_is_not_written_twice(tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop saves the update that its report saved just before, and so does the end."""
    save = Mock(wraps=tensors.save_tensors)
    for module in (checkpoint, state):
        monkeypatch.setattr(module, "save_tensors", save)
    stopped(tiny_job(updates=12, resume_minutes=1e-9), tmp_path / "run", 8)
    assert run(tiny_job(updates=12, resume_minutes=1e-9), tmp_path / "run")
    # Weights and moments of every update, and the weights for averaging after updates 5 and 10.
    assert save.call_count == 2 * 12 + 2


def test_what_was_measured_after_the_state_is_measured_again(tmp_path: Path, tiny_job: MakeJob) -> None:
    """As after a kill between two saves, or before the first one: later records and checkpoints go."""
    folder = tmp_path / "run"
    stopped(tiny_job(), folder, 10)
    assert checkpoint.last_saved_update(folder) == 10
    later = folder / "checkpoints/update-00000011.safetensors"
    shutil.copy(folder / "checkpoints/update-00000010.safetensors", later)
    with (folder / "chain.jsonl").open("a") as file:
        file.write(read_chain(folder / "chain.jsonl")[-1].model_copy(update={"update": 11}).model_dump_json() + "\n")
    with (folder / "history.jsonl").open("a") as file:
        file.write("".join(f'{{"update": {update}, "seconds": 50.0, "late": 1}}\n' for update in (10, 11)))
        file.write('\0\0\0{"update": 12, "seconds": 51.0}\n{"update": 13, "seco')
    stopped(tiny_job(), folder, 11)
    assert not later.exists()
    assert [link.update for link in read_chain(folder / "chain.jsonl")] == [5, 10]
    assert (folder / "checkpoints/update-00000010.safetensors").exists()
    assert [record["update"] for record in read_history(folder / "history.jsonl") if "late" in record] == [10]
    assert all(record["seconds"] > 50 for record in read_history(folder / "history.jsonl") if record["update"] > 10)
    shutil.rmtree(folder / "resume")
    stopped(tiny_job(), folder, 4)
    assert [record["update"] for record in read_history(folder / "history.jsonl")] == [1, 2, 3, 4]
    assert not checkpoint.checkpoints(folder / "checkpoints")


def test_logs_are_on_disk_before_the_state(tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power failure a state whose logs are cut would never get them back."""
    order: list[str] = []
    flushed, saved = loop.flush, state.save_state
    monkeypatch.setattr(loop, "flush", lambda path: (order.append(path.name), flushed(path)))
    monkeypatch.setattr(state, "save_state", lambda *given: (order.append("state"), saved(*given)))
    assert run(tiny_job(updates=10, resume_minutes=1e-9), tmp_path / "run")
    saves = " ".join(order).split("state")
    assert len(saves) > 2
    assert all("history.jsonl" in before for before in saves[:-1])
    assert saves[-2].split() == ["history.jsonl", "chain.jsonl"]


def end_of_main(patch: pytest.MonkeyPatch, folder: Path, job: dict[str, Any], train: Callable[..., bool]) -> Any:
    """Run torchrun's worker; return its exit status, None for 0."""
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    patch.setattr(loop, "train", train)
    patch.setattr(loop, "die_with_parent", lambda *given: None)
    patch.setattr(torch, "set_flush_denormal", lambda on: None)  # It would last for all later tests.
    patch.setattr(os, "_exit", sys.exit)
    patch.setattr(sys, "argv", ["loop", str(folder)])
    try:
        loop.main()
    except SystemExit as ended:
        return ended.code
    return None


def test_the_processes_of_a_training_hold_its_folder_and_die_with_torchrun(
    tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: list[object] = []

    def held(*_: object) -> bool:
        with (tmp_path / TRAINERS).open("a") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        monkeypatch.setattr(loop, "die_with_parent", lambda *given: bound.extend(given))
        return True

    assert end_of_main(monkeypatch, tmp_path, tiny_job(), held) is None
    assert not (tmp_path / "failed.json").exists()
    monkeypatch.setattr(sys, "argv", ["loop", str(tmp_path), "77"])
    loop.main()
    assert bound == [signal.SIGKILL, 77], "torchrun may have been killed before"


def test_a_failure_that_cannot_be_written_has_a_status_of_its_own(
    tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(loop, "write_json", full)
    assert end_of_main(monkeypatch, tmp_path, tiny_job(), full) == UNRECORDED
    assert "failed.json could not be written: [Errno 28] No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        ({}, {}, "will be bit-identical\n"),
        ({}, {"threads": 2, "torch": "3"}, "will not be bit-identical to an undisturbed run's: threads was 1 and is 2"),
        (GPU, GPU, "will not be bit-identical to an undisturbed run's: without training.deterministic GPUs add in no"),
        (GPU | {"deterministic": True}, GPU | {"deterministic": True}, "will be bit-identical\n"),
    ],
)
def test_a_resume_says_what_is_different_now(
    tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    before: dict[str, Any], now: dict[str, Any], message: str,
) -> None:  # fmt: skip
    """The number of processes is not among it."""
    trainer = Trainer(Job.model_validate(tiny_job()), ALONE)
    conditions = CONDITIONS.model_copy(update=before)
    saved = trainer.measured.state.model_copy(update={"conditions": conditions, "processes": 4})
    monkeypatch.setattr(Trainer, "conditions", lambda self: CONDITIONS.model_copy(update=now))
    loop.Attempt(trainer, Corpus(train_files(Path(trainer.job.corpus))), tmp_path).print_resume(saved)
    output = capsys.readouterr().out
    assert output.startswith("resuming after update 0 of 30; the weights will ")
    assert message in output


def test_fine_tuning_resumes_to_the_bit(tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(tiny_job(updates=3), tmp_path / "parent")
    job = tiny_job(updates=8, start_from={"folder": "x", "weights": "0" * 64})
    begun: list[dict[str, torch.Tensor]] = []
    step = Trainer.step

    def watched(self: Trainer, update: Any) -> None:
        if update.number == 1:
            assert not self.optimizer.state
            begun.append({name: tensor.clone() for name, tensor in self.model.state_dict().items()})
        step(self, update)

    monkeypatch.setattr(Trainer, "step", watched)
    for name in ("whole", "disturbed"):
        (tmp_path / name).mkdir()
        tensors.save_tensors(tmp_path / name / state.START, final_weights(tmp_path / "parent"))
    assert run(job, tmp_path / "whole")
    stopped(job, tmp_path / "disturbed", 4)
    (tmp_path / "disturbed" / state.START).unlink()
    assert run(job, tmp_path / "disturbed")
    assert [same(weights, final_weights(tmp_path / "parent")) for weights in begun] == [True, True]
    assert same(final_weights(tmp_path / "whole"), final_weights(tmp_path / "disturbed"))
    shutil.rmtree(tmp_path / "whole/resume")
    job["model"]["d_ff"] *= 2
    check_refusal("can change no size of the model", run, job, tmp_path / "whole")


def test_a_training_that_diverges_is_ended_however_often_it_stops(
    tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tiny_job(updates=400, shards=1, validate_every=400, checkpoint_every=400)
    losses, finite = Trainer.losses, {*range(1, 7), 19}

    def infinite(self: Trainer, *given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        smoothed, likelihood = losses(self, *given)
        return (smoothed if self.update + 1 in finite else smoothed * math.inf), likelihood

    monkeypatch.setattr(Trainer, "losses", infinite)
    stopped(job, tmp_path / "run", 9, 59, 60)
    check_refusal("the 101 updates up to 120 were not finite: the training has diverged", run, job, tmp_path / "run")
    # Every fourth update has a record; the stop after the 9th and that after the 59th came between two.
    records = {record["update"]: record for record in read_history(tmp_path / "run/history.jsonl")}
    assert [records[update]["skipped"] for update in (4, 8, 12, 16, 20, 60, 64)] == [0, 2, 4, 4, 3, 4, 4]
    sentence = "update {}: the gradient was not finite and changed no weight"
    assert capsys.readouterr().err.splitlines() == [sentence.format(n) for n in range(7, 121) if n != 19]


def sums_of_updates(job: dict[str, Any], last: int) -> LengthSums:
    numbered = updates(Corpus(train_files(Path(job["corpus"]))), 1, 120, 1, 0, 1, range(1, last + 1))
    return sum((update.sums for update in numbered), start=LengthSums())


def test_time_before_a_stop_counts_and_speed_stays_true(tmp_path: Path, tiny_job: MakeJob) -> None:
    """A stop just before a report of twenty updates: the report is of the time that they took. Each pair goes twice."""
    slow = 0.05
    job = tiny_job(updates=2000, validate_every=2000, checkpoint_every=2000, r_drop=5.0)
    stopped(job, tmp_path / "run", 19, seconds=slow)
    stopped(job, tmp_path / "run", 21)
    (record,) = [record for record in read_history(tmp_path / "run/history.jsonl") if "loss" in record]
    assert record["update"] == 20
    assert record["tokens_per_second"] <= record["tokens"] / (19 * slow)
    assert record["seconds"] >= 19 * slow
    # Operations are those of all twenty updates too.
    sums = sums_of_updates(job, 20)
    operations = 2 * training_flops(ModelSettings.model_validate(job["model"]), 16, sums)
    assert record["flops_per_second"] / record["tokens_per_second"] == pytest.approx(operations / sums.target)
    (path,) = (tmp_path / "run/resume").iterdir()
    saved = state.read_state(path)
    # Of one device: what is measured a moment later is the same time, and far from that of two.
    assert list(saved.device_seconds) == ["cpu"]
    assert saved.seconds <= saved.device_seconds["cpu"] < 1.9 * saved.seconds


@pytest.mark.parametrize(("name", "longest"), [("training", 9), ("validation", 10)])
def test_learned_positions_bound_both_sets(tmp_path: Path, tiny_job: MakeJob, name: str, longest: int) -> None:
    job = tiny_job({"positions": "learned", "max_positions": longest - 1})
    write_arrow(Path(job["corpus"]) / "valid.arrow", [([5, 2], [6, 2]), ([5, 2], [5] * 9 + [2])])
    check_refusal(rf"of the {name} set has {longest} subwords, but model.max_positions is", run, job, tmp_path / "run")


def test_ctrl_c_asks_for_a_stop_while_training_alone(tiny_job: MakeJob) -> None:
    trainer, before = Trainer(Job.model_validate(tiny_job()), ALONE), signal.getsignal(signal.SIGINT)
    with stop_on_signals(trainer):
        assert not trainer.any_stop_requested()
        signal.raise_signal(signal.SIGINT)
        assert trainer.any_stop_requested()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("device", "size", "asked"),
    [("cpu", 1, range(1, 21)), ("cuda", 1, range(1, 21)), ("cpu", 2, range(1, 21)), ("cuda", 2, [4, 8, 12, 16, 20])],
)
def test_several_gpus_ask_every_four_updates(tiny_job: MakeJob, device: str, size: int, asked: Iterable[int]) -> None:
    class Asked(World):
        def gather(self, value: Any) -> list[Any]:
            return [value, True]

    trainer = Trainer(Job.model_validate(tiny_job()), ALONE)
    trainer.world = Asked(0, size, torch.device(device))
    for update in range(1, 21):
        trainer.measured.state.update = update
        assert trainer.any_stop_requested() is (update in asked)


@pytest.mark.parametrize(("outcome", "finished"), [("done.json", True), ("interrupted", False)])
def test_a_spare_process_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: str, finished: bool) -> None:
    """It waits until the others leave word of how it ended."""
    waits = iter([lambda: None, lambda: None, (tmp_path / outcome).touch])
    monkeypatch.setattr(time, "sleep", lambda _: next(waits)())
    assert stand_by(tmp_path, World(2, 2, torch.device("cpu"))) is finished
    assert list(waits) == []


@pytest.mark.parametrize(("r_drop", "passes"), [(0.0, 1), (5.0, 2)])
def test_the_summary_says_what_was_trained(tmp_path: Path, tiny_job: MakeJob, r_drop: float, passes: int) -> None:
    """Also after a kill that came between the last state and the summary."""
    job = tiny_job(updates=9, r_drop=r_drop)
    assert run(job, tmp_path)
    done = json.loads((tmp_path / "done.json").read_text())
    (tmp_path / "done.json").unlink()
    (tmp_path / "failed.json").touch()  # of a round of torchrun's before this one
    assert run(job, tmp_path)
    assert not (tmp_path / "failed.json").exists()
    again = json.loads((tmp_path / "done.json").read_text())
    assert (done["resumes"], again["resumes"]) == (0, 1)
    assert all(again[key] == done[key] for key in ("valid_loss", "padding", "pairs"))
    assert done["valid_loss"] == logged(tmp_path, "valid_loss")[-1]
    model, total = ModelSettings.model_validate(job["model"]), sums_of_updates(job, 9)
    assert (done["updates"], done["params"]) == (9, parameters(model, 16))
    assert (done["pairs"], done["target_tokens"]) == (total.pairs, total.target)
    assert done["flops_counted"] == passes * training_flops(model, 16, total)
    assert done["valid_ppl"] > 1
    assert 0 <= done["padding"] < 0.5
