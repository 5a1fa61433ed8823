"""Passes that are recorded and repeated train what passes train that are not.

A CPU has no CUDA graphs. `recorder` does what they do to the operations of a pass.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from recorder import CpuRecorder

from nmt.config import InputError, Job
from nmt.training.batches import Corpus, train_files
from nmt.training.distributed import World
from nmt.training.gradients import FlatGradients
from nmt.training.packed.recording import WARM_UP, Recorder, packing_requested
from nmt.training.packed.shapes import Shape
from nmt.training.step import Trainer

CPU = torch.device("cpu")
MakeJob = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def _packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NMT_GRAPH", "1")


def trained(
    job: dict[str, Any], given: Recorder | None, updates: int = 24, uses: Counter[Shape] | None = None
) -> tuple[list[float], list[torch.Tensor]]:
    """The losses and gradient norms of all updates, and the weights after the last."""
    trainer = Trainer(Job.model_validate(job), World(0, 1, CPU), given)
    found = []
    for update in trainer.updates(Corpus(train_files(Path(job["corpus"]))), updates):
        trainer.step(update)
        if uses is not None:
            uses.update(batch.shape for batch in update.shards)
        interval = trainer.measured.take_interval()
        found += [interval.loss, interval.nll, interval.norm]
    return found, [parameter.detach().clone() for parameter in trainer.parameters]


def same(one: Any, other: Any) -> bool:
    return one[0] == other[0] and all(map(torch.equal, one[1], other[1]))


class Counting(CpuRecorder):
    """Counts recordings and repetitions."""

    def __init__(self) -> None:
        self.recordings = self.repetitions = 0

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        self.recordings += 1
        repeat = super().record(run)

        def counted() -> None:
            self.repetitions += 1
            repeat()

        return counted


@pytest.mark.parametrize(("precision", "shards"), [("float32", 1), ("bfloat16", 4)])
def test_repeated_passes_train_the_same_bits(tiny_job: MakeJob, precision: str, shards: int) -> None:
    """With dropout, on updates of other sizes, while the weights change."""
    job = tiny_job(precision=precision, shards=shards)
    job["model"] |= {"P_drop": 0.2, "attention_dropout": 0.1, "relu_dropout": 0.1}
    counting, uses = Counting(), Counter[Shape]()
    assert same(trained(job, counting, uses=uses), trained(job, None))
    recorded = {shape: count for shape, count in uses.items() if count > WARM_UP}
    assert counting.recordings == len(recorded) >= 2
    # The recording is made after the pass of a shape that it repeats first.
    assert counting.repetitions == sum(count - WARM_UP for count in recorded.values())


@pytest.mark.parametrize(("precision", "rounding"), [("float32", 1e-5), ("bfloat16", 0.01)])
def test_the_losses_are_those_of_padded_batches(
    tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch, precision: str, rounding: float
) -> None:
    """Without dropout, whose random numbers are others: losses and gradient norms of every update."""
    job = tiny_job(precision=precision, shards=4)
    job["model"]["P_drop"] = 0.0
    recorded = trained(job, CpuRecorder(), 6)[0]
    monkeypatch.setenv("NMT_GRAPH", "0")
    padded = trained(job, None, 6)[0]
    assert recorded == pytest.approx(padded, rel=rounding)


def test_a_recording_that_repeats_something_else_is_not_used(
    tiny_job: MakeJob, capsys: pytest.CaptureFixture[str]
) -> None:
    """For example one whose dropout stays the same: the gradient differs."""

    class Wrong(Counting):
        def record(self, run: Callable[[], None]) -> Callable[[], None]:
            repeat = super().record(run)

            def other_dropout() -> None:
                torch.manual_seed(1)
                repeat()

            return other_dropout

    wrong = Wrong()
    expected = trained(tiny_job(), None)
    capsys.readouterr()
    assert same(trained(tiny_job(), wrong), expected)
    error = capsys.readouterr().err
    assert error.startswith("a recorded pass has another gradient, by ")
    assert error.endswith(": training continues without recordings, more slowly\n")
    assert wrong.recordings == error.count("\n") == 1


class Fails(CpuRecorder):
    """What a failed recording looks like: its own error is not the cause."""

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        run()
        try:
            raise RuntimeError("operation not permitted when stream is capturing\nmore about it")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")


def test_a_pass_that_cannot_be_recorded_ends_the_training(tiny_job: MakeJob) -> None:
    """What a failed recording leaves of torch's state is unknown."""
    with pytest.raises(InputError) as caught:
        trained(tiny_job(), Fails())
    assert str(caught.value) == (
        "a pass of the model cannot be recorded as a CUDA graph here (operation not permitted when stream is "
        "capturing): set NMT_GRAPH=0"
    )


def test_deterministic_trainings_repeat_only_what_is_equal(
    tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Almost(Counting):
        def record(self, run: Callable[[], None]) -> Callable[[], None]:
            repeat = super().record(run)
            gradients = trainers[-1].gradients

            def rounded() -> None:
                repeat()
                assert isinstance(gradients, FlatGradients)
                gradients.flats[0].mul_(1 + 1e-6)

            return rounded

    trainers = list[Trainer]()
    for deterministic, repeated in ((False, True), (True, False)):
        job, almost = Job.model_validate(tiny_job(shards=1, deterministic=deterministic)), Almost()
        trainers.append(Trainer(job, World(0, 1, CPU), almost))
        (update,) = trainers[-1].updates(Corpus(train_files(Path(job.corpus))), 1)
        for _ in range(WARM_UP + 2):
            trainers[-1].step(update)
        assert almost.recordings == 1
        assert (trainers[-1].recorded_shapes, "has another gradient" in capsys.readouterr().err) == (
            int(repeated), not repeated,
        )  # fmt: skip


@pytest.mark.parametrize("bad", [torch.inf, 0.0])
def test_a_pass_without_a_gradient_to_compare_is_not_recorded(
    tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bad: float
) -> None:
    """Overflow, or a shard without a pair: the next pass of its shape is recorded."""
    counting, job = Counting(), Job.model_validate(tiny_job(shards=1))
    trainer = Trainer(job, World(0, 1, CPU), counting)
    (update,) = trainer.updates(Corpus(train_files(Path(job.corpus))), 1)
    losses, calls = trainer._recorded_pass._losses, 0

    def sometimes_bad(batch: Any) -> Any:
        nonlocal calls
        calls += 1
        smoothed, likelihood = losses(batch)
        return (smoothed * bad if calls == WARM_UP + 1 else smoothed), likelihood

    monkeypatch.setattr(trainer._recorded_pass, "_losses", sometimes_bad)
    for _ in range(WARM_UP + 1):
        trainer.step(update)
    assert counting.recordings == 0
    trainer.step(update)
    trainer.step(update)
    assert (counting.recordings, counting.repetitions) == (1, 2)
    assert capsys.readouterr().err == ""


def test_rare_shapes_are_not_recorded(tiny_job: MakeJob) -> None:
    """Each recording takes memory."""
    counting, job = Counting(), Job.model_validate(tiny_job(shards=1))
    trainer = Trainer(job, World(0, 1, CPU), counting)
    (update,) = trainer.updates(Corpus(train_files(Path(job.corpus))), 1)
    rare = [dataclasses.replace(batch, common=False) for batch in update.shards]
    for _ in range(WARM_UP + 2):
        trainer.step(dataclasses.replace(update, shards=rare))
    assert counting.recordings == 0
    for _ in range(WARM_UP + 2):
        trainer.step(update)
    assert counting.recordings == 1


def test_what_a_recording_reads_stays_in_memory(tiny_job: MakeJob) -> None:
    """A validation with a longer sentence gives the model another table of positions."""
    job = Job.model_validate(tiny_job(shards=1))
    trainer = Trainer(job, World(0, 1, CPU), CpuRecorder())
    (update,) = trainer.updates(Corpus(train_files(Path(job.corpus))), 1)
    for _ in range(WARM_UP + 1):
        trainer.step(update)
    table = weakref.ref(trainer.model.embedding.pe)
    trainer.model.embedding.positions(600)
    assert table() is not trainer.model.embedding.pe
    assert any(table() is tensor for tensor in trainer._recorded_pass._kept)


def test_a_batch_is_not_changed(tiny_job: MakeJob) -> None:
    """Others of its shape are copied to the memory that a recording reads."""
    job = Job.model_validate(tiny_job(shards=4))
    trainer = Trainer(job, World(0, 1, CPU), CpuRecorder())
    (update,) = trainer.updates(Corpus(train_files(Path(job.corpus))), 1)
    before = [batch.flat.clone() for batch in update.shards]
    trainer.step(update)
    assert all(map(torch.equal, before, [batch.flat for batch in update.shards]))


def test_the_recorder_refuses_what_a_graph_refuses() -> None:
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing: aten::_local_scalar_dense"):
        CpuRecorder().record(lambda: print(torch.ones(1).sum().item()))


@pytest.mark.parametrize(("value", "on_cpu", "on_gpu"), [(None, False, True), ("0", False, False), ("1", True, True)])
def test_when_updates_are_packed(
    monkeypatch: pytest.MonkeyPatch, value: str | None, on_cpu: bool, on_gpu: bool
) -> None:
    monkeypatch.delenv("NMT_GRAPH")
    if value is not None:
        monkeypatch.setenv("NMT_GRAPH", value)
    assert packing_requested(CPU) is on_cpu
    assert packing_requested(torch.device("cuda", 3)) is on_gpu


def test_anything_but_0_and_1_is_refused(tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NMT_GRAPH", "on")
    with pytest.raises(InputError, match=r"^NMT_GRAPH is 'on': it must be 1 or 0, or unset$"):
        Trainer(Job.model_validate(tiny_job()), World(0, 1, CPU))
