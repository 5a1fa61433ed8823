"""Training: it learns, resumes to the bit, keeps what it should, and no bad gradient reaches the weights."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from nmt.common import tensors
from nmt.common.processes import TRAINERS, UNRECORDED
from nmt.config import InputError, Job, ModelSettings
from nmt.flops import LengthSums, parameters, training_flops
from nmt.training import checkpoint, state, trainer
from nmt.training.batches import Corpus, check_positions, pairs_of_updates, train_files, updates
from nmt.training.distributed import World
from nmt.training.history import read_history
from nmt.training.step import Trainer, out_of_memory, random_seed
from nmt.training.trainer import stand_by, stop_on_signals, train

ALONE = World(0, 1, torch.device("cpu"))
MakeJob = Callable[..., dict[str, Any]]


def run(make: dict[str, Any], folder: Path) -> bool:
    folder.mkdir(exist_ok=True)
    return train(Job.model_validate(make), folder, ALONE)


def final_weights(folder: Path) -> dict[str, torch.Tensor]:
    path = checkpoint.latest_resume(folder / "resume")
    assert path is not None
    return tensors.load_tensors(path / tensors.WEIGHTS)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def stop_after(patch: pytest.MonkeyPatch, number: int, seconds: float = 0.0) -> None:
    """Have trainings be asked to stop after an update; each update takes so many `seconds` more."""
    step = Trainer.step

    def watched(self: Trainer, update: Any) -> None:
        time.sleep(seconds)
        step(self, update)
        if update.number == number:
            os.kill(os.getpid(), signal.SIGTERM)

    patch.setattr(Trainer, "step", watched)


def test_without_smoothing_the_loss_is_the_likelihood_that_perplexity_is_of(tmp_path: Path, tiny_job: MakeJob) -> None:
    """And with it the likelihood is another number than the loss."""
    for eps_ls in (0.0, 0.1):
        assert run(tiny_job(updates=4, eps_ls=eps_ls), tmp_path / str(eps_ls))
        records = [record for record in read_history(tmp_path / str(eps_ls) / "history.jsonl") if "loss" in record]
        assert len(records) == 4
        for record in records:
            assert record["ppl"] == pytest.approx(math.exp(record["nll"]))
            assert (record["loss"] == pytest.approx(record["nll"], rel=1e-9)) is (eps_ls == 0.0)


def test_it_learns_to_copy(tmp_path: Path, tiny_job: MakeJob) -> None:
    job = tiny_job(
        updates=300, validate_every=300, resume_minutes=1.0, tokens=200, warmup_steps=100, learning_rate_scale=0.5,
        shards=1,
    )  # fmt: skip
    job["model"].update(d_model=32, d_k=16, d_v=16)
    assert run(job, tmp_path / "run")
    losses = [r["valid_loss"] for r in read_history(tmp_path / "run/history.jsonl") if "valid_loss" in r]
    # A guess among twelve words and the end has a loss of about 2.5 nats, the mean of the source's words one of 1.7.
    assert losses[-1] < 0.5


@pytest.mark.parametrize(("precision", "packed"), [("float32", "0"), ("bfloat16", "1")])
def test_stopped_and_resumed_it_ends_with_the_same_bits(
    tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch, precision: str, packed: str
) -> None:
    monkeypatch.setenv("NMT_GRAPH", packed)
    job = tiny_job(precision=precision)
    assert run(job, tmp_path / "undisturbed")
    for number in (7, 8, 23):
        with monkeypatch.context() as patch:
            stop_after(patch, number)
            assert not run(job, tmp_path / "disturbed")
    assert run(job, tmp_path / "disturbed")
    assert same(final_weights(tmp_path / "undisturbed"), final_weights(tmp_path / "disturbed"))
    for path in checkpoint.checkpoints(tmp_path / "undisturbed/checkpoints"):
        twin = tmp_path / "disturbed/checkpoints" / path.name
        assert same(tensors.load_tensors(path), tensors.load_tensors(twin))
    curves = [
        [(r["update"], r.get("loss"), r.get("valid_loss")) for r in read_history(tmp_path / name / "history.jsonl")]
        for name in ("undisturbed", "disturbed")
    ]
    assert curves[0] == curves[1]


def test_a_finished_training_can_be_extended(tmp_path: Path, tiny_job: MakeJob) -> None:
    assert run(tiny_job(updates=30), tmp_path / "whole")
    assert run(tiny_job(updates=12), tmp_path / "extended")
    assert run(tiny_job(updates=30), tmp_path / "extended")
    assert same(final_weights(tmp_path / "whole"), final_weights(tmp_path / "extended"))


def test_it_keeps_the_newest_checkpoints_and_one_state(tmp_path: Path, tiny_job: MakeJob) -> None:
    assert run(tiny_job(updates=27), tmp_path / "run")
    names = [path.name for path in checkpoint.checkpoints(tmp_path / "run/checkpoints")]
    assert names == [f"update-{update:08d}.safetensors" for update in (15, 20, 25)]
    assert [path.name for path in (tmp_path / "run/resume").iterdir()] == ["update-00000027"]


def test_any_number_of_shards_follows_the_same_losses(tmp_path: Path, tiny_job: MakeJob) -> None:
    curves = []
    for shards in (1, 4, 16):
        job = tiny_job(updates=25, warmup_steps=400, shards=shards)
        job["model"]["P_drop"] = 0.0
        run(job, tmp_path / str(shards))
        curves.append([r["loss"] for r in read_history(tmp_path / str(shards) / "history.jsonl") if "loss" in r])
    assert len(curves[0]) == 25
    assert curves[0] == pytest.approx(curves[1], rel=1e-4)
    assert curves[0] == pytest.approx(curves[2], rel=1e-4)


def test_a_shard_that_does_not_fit_is_one_sentence(
    tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Trainer, batch: Any, eps_ls: float) -> tuple[torch.Tensor, torch.Tensor]:
        return (torch.empty(2**60, dtype=torch.uint8),) * 2

    monkeypatch.setattr(Trainer, "losses", full)
    with pytest.raises(InputError) as caught:
        run(tiny_job(), tmp_path / "run")
    assert re.fullmatch(
        r"a shard of \d+ pairs, padded to \d+ and \d+ subwords, does not fit into this device's memory: raise "
        r"training\.shards, which is 2, or use a larger device or fewer processes on it",
        str(caught.value),
    )


def test_out_of_memory_is_told_from_other_errors() -> None:
    assert out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not out_of_memory(RuntimeError("shapes differ"))


def test_a_stop_has_the_skipped_updates_on_disk_before_the_state(
    tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that resumes there would never write them again."""
    diverging(monkeypatch, since=3, but=5)
    stop_after(monkeypatch, 5)
    saved, seen = state.save_state, []
    monkeypatch.setattr(
        state, "save_state", lambda *given: (seen.extend(read_history(tmp_path / "skipped.jsonl")), saved(*given))
    )
    assert not run(tiny_job(updates=1000, validate_every=1000, checkpoint_every=1000, resume_minutes=10.0), tmp_path)
    assert [record["update"] for record in seen] == [4]


def test_a_gradient_that_is_not_finite_changes_nothing(
    tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = Trainer.losses

    def infinite(self: Trainer, batch: Any, eps_ls: float) -> tuple[torch.Tensor, torch.Tensor]:
        smoothed, likelihood = losses(self, batch, eps_ls)
        return (smoothed * float("inf") if self.update == 3 and eps_ls else smoothed), likelihood

    monkeypatch.setattr(Trainer, "losses", infinite)
    job = Job.model_validate(tiny_job())
    corpus = Corpus(train_files(Path(job.corpus)))
    one = Trainer(job, ALONE)
    for update in updates(corpus, 1, 120, job.training.shards, 0, 1, 1, 5):
        before = {name: tensor.clone() for name, tensor in one.model.state_dict().items()}
        moments = one.optimizer.state.get(one.parameters[0], {}).get("exp_avg", torch.zeros(())).clone()
        one.step(update)
        assert same(before, one.model.state_dict()) == (update.number == 4)
        if update.number == 4:
            assert torch.equal(one.optimizer.state[one.parameters[0]]["exp_avg"], moments)
    assert all(torch.isfinite(tensor).all() for tensor in one.model.state_dict().values())
    assert one.measured.check_gradients() == [4]
    assert run(tiny_job(updates=6), tmp_path / "run")
    assert "update 4: the gradient was not finite and changed no weight" in capsys.readouterr().err
    skipped = json.loads((tmp_path / "run/skipped.jsonl").read_text())
    assert skipped["update"] == 4
    # The tests' corpus counts the lines of each bin anew, from 0.
    assert skipped["lines"] == sorted(
        corpus.line(int(pair)) for _, pairs in pairs_of_updates(corpus, 1, 120, [4]) for pair in pairs
    )
    assert sum(record.get("skipped", 0) for record in read_history(tmp_path / "run/history.jsonl")) == 1


def test_a_stop_between_two_reports_loses_no_measurement(
    tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tiny_job(updates=200, shards=1, validate_every=200, checkpoint_every=200, resume_minutes=10.0)
    assert run(job, tmp_path / "undisturbed")
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        assert not run(job, tmp_path / "disturbed")
    assert run(job, tmp_path / "disturbed")
    measured = ("update", "loss", "nll", "tokens", "gradient_norm", "padding")
    curves = [
        [[record.get(key) for key in measured] for record in read_history(tmp_path / name / "history.jsonl")]
        for name in ("undisturbed", "disturbed")
    ]
    assert curves[0][0][0] == 2
    assert curves[0] == curves[1]


def test_a_state_that_a_kill_between_two_renames_left_is_found(
    tmp_path: Path, tiny_job: MakeJob, capsys: pytest.CaptureFixture[str]
) -> None:
    """Earlier versions renamed the state, then its replacement; a machine of another name may resume it."""
    folder, job = tmp_path / "run", tiny_job(updates=12)
    assert run(job, folder)
    named = folder / "resume/update-00000012"
    aside = folder / "resume/.update-00000012.another-machine.7.old"
    shutil.copytree(named, folder / "resume/.update-00000012.another-machine.7.tmp")
    named.rename(aside)
    assert checkpoint.latest_resume(folder / "resume") == aside
    assert checkpoint.trained(folder) == 12
    assert run(tiny_job(updates=14), folder)
    assert (
        "resuming after update 12 of 14; the weights will be bit-identical to an undisturbed run's: processor, "
        "threads, torch and compilation are the same\n"
    ) in capsys.readouterr().out
    assert [path.name for path in (folder / "resume").iterdir()] == ["update-00000014"]
    assert run(tiny_job(updates=14), tmp_path / "undisturbed")
    assert same(final_weights(tmp_path / "undisturbed"), final_weights(folder))


def test_without_a_state_nothing_is_removed(
    tmp_path: Path, tiny_job: MakeJob, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, job = tmp_path / "run", tiny_job(updates=12)
    assert run(job, folder)
    (folder / "skipped.jsonl").write_text('{"update": 3}\n')
    (folder / "earlier-1").mkdir()
    history = (folder / "history.jsonl").read_text()
    assert not (folder / "earlier-2").exists(), "a new training has nothing to move"
    shutil.rmtree(folder / "resume")
    capsys.readouterr()
    assert run(job, folder)
    aside = folder / "earlier-2"
    (message,) = [line for line in capsys.readouterr().out.splitlines() if "no saved state" in line]
    assert f"is in {folder / 'resume'}: training starts at update 1" in message
    assert message.endswith(f"were moved to {aside}")
    assert sorted(path.name for path in aside.iterdir()) == [
        "chain.jsonl", "history.jsonl", "skipped.jsonl", "update-00000005.safetensors", "update-00000010.safetensors",
    ]  # fmt: skip
    assert (aside / "history.jsonl").read_text() == history
    assert len(read_history(folder / "history.jsonl")) == len(history.splitlines())
    # An attempt that left only an empty history has nothing to move either.
    shutil.rmtree(folder / "resume")
    for path in (*checkpoint.checkpoints(folder / "checkpoints"), folder / "history.jsonl", folder / "chain.jsonl"):
        path.unlink()
    (folder / "history.jsonl").touch()
    assert run(job, folder)
    assert not (folder / "earlier-3").exists()


def test_a_state_is_not_written_twice(tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop saves the update that its report saved just before, and so does the end."""
    saved: list[str] = []
    save = tensors.save_tensors

    def counted(path: Path, tensors: Any) -> None:
        saved.append(str(path))
        save(path, tensors)

    for module in (checkpoint, state):
        monkeypatch.setattr(module, "save_tensors", counted)
    with monkeypatch.context() as patch:
        stop_after(patch, 8)
        assert not run(tiny_job(updates=12, resume_minutes=1e-9), tmp_path / "run")
    assert run(tiny_job(updates=12, resume_minutes=1e-9), tmp_path / "run")
    # Weights and moments of every update, and the weights for averaging after updates 5 and 10.
    assert len(saved) == 2 * 12 + 2


def test_what_was_measured_after_the_state_is_measured_again(
    tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill between two saves: records, checkpoints and skipped updates of later updates go."""
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_after(patch, 10)
        assert not run(tiny_job(), folder)
    assert checkpoint.trained(folder) == 10
    later = folder / "checkpoints/update-00000011.safetensors"
    shutil.copy(folder / "checkpoints/update-00000010.safetensors", later)
    for name in ("history.jsonl", "skipped.jsonl"):
        with (folder / name).open("a") as file:
            file.write("".join(f'{{"update": {update}, "seconds": 50.0, "late": 1}}\n' for update in (10, 11)))
            file.write('\0\0\0{"update": 12, "seconds": 51.0}\n{"update": 13, "seco')
    with monkeypatch.context() as patch:
        stop_after(patch, 11)
        assert not run(tiny_job(), folder)
    assert not later.exists()
    assert (folder / "checkpoints/update-00000010.safetensors").exists()
    for name in ("history.jsonl", "skipped.jsonl"):
        assert [record["update"] for record in read_history(folder / name) if "late" in record] == [10]
    assert all(record["seconds"] > 50 for record in read_history(folder / "history.jsonl") if record["update"] > 10)


def test_a_history_that_was_damaged_before_its_state_is_refused(
    tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        assert not run(tiny_job(), tmp_path)
    lines = (tmp_path / "history.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "history.jsonl").write_text("".join(["\0" + lines[0], *lines[1:]]))
    with pytest.raises(InputError, match=r"history\.jsonl was on disk up to update 3, but line 1 cannot be read"):
        run(tiny_job(), tmp_path)
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == len(lines), "a record was dropped"


def test_early_stopping_ends_when_patience_does(
    tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = iter([3.0, 2.0, 2.5, 2.6, 1.0])
    monkeypatch.setattr(Trainer, "validate", lambda self, corpus: next(measured))
    assert run(tiny_job(updates=50, patience=2), tmp_path / "run")
    assert checkpoint.latest_resume(tmp_path / "run/resume") == tmp_path / "run/resume/update-00000040"


def test_the_validation_at_an_early_end_does_not_count_for_the_patience_of_a_longer_training(
    tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = {4: 3.0, 8: 2.0, 10: 2.5, 12: 1.5, 16: 1.2, 20: 1.0}
    monkeypatch.setattr(Trainer, "validate", lambda self, corpus: losses[self.update])
    settings = {"validate_every": 4, "patience": 1}
    assert run(tiny_job(updates=10, **settings), tmp_path / "run")
    assert json.loads((tmp_path / "run/done.json").read_text())["loss_valid"] == 2.5
    assert run(tiny_job(updates=20, **settings), tmp_path / "run")
    assert json.loads((tmp_path / "run/done.json").read_text())["updates"] == 20


def test_what_is_logged_is_on_disk_before_the_state(
    tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power failure a state whose logs are cut would never get them back."""
    order: list[str] = []
    flushed, saved = trainer.flush, state.save_state
    monkeypatch.setattr(trainer, "flush", lambda path: (order.append(path.name), flushed(path)))
    monkeypatch.setattr(state, "save_state", lambda *given: (order.append("state"), saved(*given)))
    assert run(tiny_job(updates=10), tmp_path / "run")
    saves = " ".join(order).split("state")
    assert len(saves) > 2
    assert all("history.jsonl" in before for before in saves[:-1])
    assert saves[-2].split() == ["history.jsonl", "chain.jsonl"]


def test_the_processes_of_a_training_hold_its_folder(
    tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(tiny_job()))

    def held(*_: object) -> bool:
        with (tmp_path / TRAINERS).open("a") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True

    monkeypatch.setattr(trainer, "train", held)
    bound: list[object] = []
    monkeypatch.setattr(trainer, "die_with_parent", lambda *given: bound.extend(given))
    monkeypatch.setattr(sys, "argv", ["trainer", str(tmp_path), "77"])
    trainer.main()
    assert bound == [signal.SIGKILL, 77], "torchrun may have been killed before"
    assert not (tmp_path / "failed.json").exists()


def test_a_failure_that_cannot_be_written_has_a_status_of_its_own(
    tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(tiny_job()))

    def full(*_: object) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("train", "record_failure"):
        monkeypatch.setattr(trainer, name, full)
    monkeypatch.setattr(trainer, "die_with_parent", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["trainer", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        trainer.main()
    assert ended.value.code == UNRECORDED
    assert "No space left on device; " in capsys.readouterr().err


def test_a_fork_without_its_state_does_not_train_from_the_beginning(tmp_path: Path, tiny_job: MakeJob) -> None:
    with pytest.raises(InputError, match="this training is a fork, but no state is in"):
        run(tiny_job(fork={"update": 5, "link": "0" * 64}), tmp_path / "run")


def test_a_stop_where_patience_ends_changes_nothing(
    tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does more time: a training that its patience ended stays where it is."""
    measured = iter([3.0, 2.0, 2.5, 2.6])
    monkeypatch.setattr(Trainer, "validate", lambda self, corpus: next(measured))
    stop_after(monkeypatch, 40)
    assert run(tiny_job(updates=50, patience=2), tmp_path / "run")
    weights = final_weights(tmp_path / "run")
    assert run(tiny_job(updates=80, patience=2), tmp_path / "run")
    assert json.loads((tmp_path / "run/done.json").read_text())["updates"] == 40
    assert same(weights, final_weights(tmp_path / "run"))


def test_a_resumed_training_knows_the_best_validation(
    tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worse than the best before the stop, if better than the last: patience ends."""
    measured = iter([2.0, 2.6, 2.5, 1.0])
    monkeypatch.setattr(Trainer, "validate", lambda self, corpus: next(measured))
    with monkeypatch.context() as patch:
        stop_after(patch, 21)
        assert not run(tiny_job(updates=50, patience=2), tmp_path / "run")
    assert run(tiny_job(updates=50, patience=2), tmp_path / "run")
    assert checkpoint.trained(tmp_path / "run") == 30


def test_the_last_validation_is_told_after_a_resume_without_another(
    tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill after the last state and before the summary."""
    job = tiny_job(updates=10)
    assert run(job, tmp_path / "run")
    done = json.loads((tmp_path / "run/done.json").read_text())
    (tmp_path / "run/done.json").unlink()
    assert run(job, tmp_path / "run")
    again = json.loads((tmp_path / "run/done.json").read_text())
    assert (again["loss_valid"], again["padding"], again["pairs"]) == (
        done["loss_valid"], done["padding"], done["pairs"],
    )  # fmt: skip
    assert (done["resumes"], again["resumes"]) == (0, 1)


def diverging(patch: pytest.MonkeyPatch, since: int, but: int = 0) -> None:
    """Have gradients be infinite in all updates after `since`, except in `but`."""
    losses = Trainer.losses

    def infinite(self: Trainer, batch: Any, eps_ls: float) -> tuple[torch.Tensor, torch.Tensor]:
        smoothed, likelihood = losses(self, batch, eps_ls)
        return (smoothed * math.inf if self.update >= since and self.update + 1 != but else smoothed), likelihood

    patch.setattr(Trainer, "losses", infinite)


def test_a_training_that_diverges_is_ended_however_often_it_stops(
    tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tiny_job(updates=400, shards=1, validate_every=400, checkpoint_every=400, resume_minutes=10.0)
    diverging(monkeypatch, since=6, but=19)
    for number in (9, 59, 60):
        with monkeypatch.context() as patch:
            stop_after(patch, number)
            assert not run(job, tmp_path / "run")
    with pytest.raises(InputError, match="the 101 updates up to 120 were not finite: the training has diverged"):
        run(job, tmp_path / "run")
    # Every fourth update has a record; the stop after the 9th and that after the 59th came between two.
    records = {record["update"]: record for record in read_history(tmp_path / "run/history.jsonl")}
    assert [records[update]["skipped"] for update in (4, 8, 12, 16, 20, 60, 64)] == [0, 2, 4, 4, 3, 4, 4]
    skipped = read_history(tmp_path / "run/skipped.jsonl")
    assert [record["update"] for record in skipped] == [n for n in range(7, 117) if n != 19]


def test_time_before_a_stop_counts_and_speed_stays_true(
    tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop just before a report of twenty updates: the report is of the time that they took."""
    slow = 0.05
    job = tiny_job(updates=2000, validate_every=2000, checkpoint_every=2000, resume_minutes=10.0)
    for number, seconds in ((19, slow), (21, 0.0)):
        with monkeypatch.context() as patch:
            stop_after(patch, number, seconds)
            assert not run(job, tmp_path / "run")
    (record,) = [record for record in read_history(tmp_path / "run/history.jsonl") if "loss" in record]
    assert record["update"] == 20
    assert record["tokens_per_second"] <= record["tokens"] / (19 * slow)
    assert record["seconds"] >= 19 * slow
    # Operations are those of all twenty updates too.
    numbered = updates(Corpus(train_files(Path(job["corpus"]))), 1, 120, 1, 0, 1, 1, 20)
    sums = sum((update.sums for update in numbered), start=LengthSums.zero())
    operations = training_flops(ModelSettings.model_validate(job["model"]), 16, sums)
    assert record["flops_per_second"] / record["tokens_per_second"] == pytest.approx(operations / sums.target)
    (path,) = (tmp_path / "run/resume").iterdir()
    saved = state.read_state(path)
    # Of one device: what is measured a moment later is the same time, and far from that of two.
    assert list(saved.device_seconds) == ["cpu"]
    assert saved.seconds <= saved.device_seconds["cpu"] < 1.9 * saved.seconds


def test_a_sentence_longer_than_the_learned_positions_is_told_before_the_first_update(
    tmp_path: Path, tiny_job: MakeJob
) -> None:
    job = tiny_job()
    job["model"] |= {"positions": "learned", "max_positions": 6}
    with pytest.raises(InputError, match=r"of the training set has 9 subwords, but model.max_positions is 6"):
        run(job, tmp_path / "run")


def test_learned_positions_are_checked_on_both_sides_of_both_sets(
    tmp_path: Path, tiny_job: MakeJob, write_arrow: Callable[..., None]
) -> None:
    short, longer = [([5, 2], [6, 2])], [([5, 2], [6, 2]), ([5, 5, 2], [6, 2]), ([5, 2], [6, 6, 6, 2])]
    for name, pairs in (("short", short), ("longer", longer)):
        write_arrow(tmp_path / name, pairs)
    corpora = {name: Corpus([tmp_path / name]) for name in ("short", "longer")}
    model = ModelSettings.model_validate(tiny_job()["model"] | {"positions": "learned", "max_positions": 4})
    check_positions(model, corpora["longer"], corpora["longer"])
    three = model.model_copy(update={"max_positions": 3})
    for name, given in (("training", ("longer", "short")), ("validation", ("short", "longer"))):
        with pytest.raises(
            InputError, match=rf"^line 3 of the {name} set has 4 subwords, but model.max_positions is 3:"
        ):
            check_positions(three, *(corpora[one] for one in given))
    check_positions(three.model_copy(update={"positions": "sinusoidal"}), corpora["longer"], corpora["longer"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_ask_for_a_stop_while_training_alone(tiny_job: MakeJob, number: signal.Signals) -> None:
    trainer = Trainer(Job.model_validate(tiny_job()), ALONE)
    before = signal.getsignal(number)
    with stop_on_signals(trainer):
        assert not trainer.any_stop_requested()
        os.kill(os.getpid(), number)
        assert trainer.any_stop_requested()
    assert signal.getsignal(number) is before


@pytest.mark.parametrize(
    ("device", "size", "asked"),
    [("cpu", 1, range(1, 21)), ("cuda", 1, range(1, 21)), ("cpu", 2, range(1, 21)), ("cuda", 2, [4, 8, 12, 16, 20])],
)
def test_several_gpus_ask_each_other_every_four_updates(
    tiny_job: MakeJob, device: str, size: int, asked: Iterable[int]
) -> None:
    class Asked(World):
        def minimum(self, value: int) -> int:
            return 0

    trainer = Trainer(Job.model_validate(tiny_job()), ALONE)
    trainer.world = Asked(0, size, torch.device(device))
    for update in range(1, 21):
        trainer.measured.update = update
        assert trainer.any_stop_requested() is (update in asked)


@pytest.mark.parametrize(("outcome", "finished"), [("done.json", True), ("interrupted", False)])
def test_a_process_that_stands_by_ends_with_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: str, finished: bool
) -> None:
    """It waits until the others leave word of how it ended."""
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            (tmp_path / outcome).touch()

    monkeypatch.setattr(time, "sleep", wait)
    assert stand_by(tmp_path, World(2, 2, torch.device("cpu"))) is finished
    assert len(waits) == 3


def test_the_summary_says_what_was_trained(tmp_path: Path, tiny_job: MakeJob) -> None:
    job = tiny_job(updates=9)
    run(job, tmp_path / "run")
    done = json.loads((tmp_path / "run/done.json").read_text())
    model = ModelSettings.model_validate(job["model"])
    assert done["updates"] == 9
    assert done["params"] == parameters(model, 16)
    corpus = Corpus(train_files(Path(job["corpus"])))
    sums = [update.sums for update in updates(corpus, 1, 120, 1, 0, 1, 1, 9)]
    total = sum(sums[1:], start=sums[0])
    assert (done["pairs"], done["target_tokens"]) == (total.pairs, total.target)
    assert done["flops_counted"] == training_flops(model, 16, total)
    assert done["ppl_valid"] > 1
    assert 0 <= done["padding"] < 0.5


def test_a_full_disk_at_a_checkpoint_leaves_the_one_before(
    tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(tiny_job(updates=10), tmp_path / "run")
    before = final_weights(tmp_path / "run")

    def full(_: Any, path: Path) -> None:
        path.write_bytes(b"half of it")
        raise tensors.SafetensorError("No space left on device")

    monkeypatch.setattr(tensors, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        run(tiny_job(updates=30), tmp_path / "run")
    assert same(final_weights(tmp_path / "run"), before)
    assert not list((tmp_path / "run").rglob("*.tmp"))


def test_streams_of_random_numbers_are_distinct() -> None:
    seeds = {random_seed(s, u, n) for s in range(3) for u in range(50) for n in range(16)}
    assert len(seeds) == 3 * 50 * 16
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("rest", [b'{"upd', b'{"upd\n', bytes(50), bytes(50) + b'\n{"update": 3}\n', b"\xff\xfe\n"])
def test_a_history_is_read_up_to_what_a_kill_or_a_power_failure_left(tmp_path: Path, rest: bytes) -> None:
    (tmp_path / "h").write_bytes(b'{"update": 1}\n' + rest)
    assert read_history(tmp_path / "h") == [{"update": 1}]
    assert read_history(tmp_path / "none") == []
