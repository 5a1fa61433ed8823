"""Passes that are recorded and repeated train what passes train that are not.

A CPU has no CUDA graphs. `recorder` does what they do to the operations of a pass.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from recorder import CpuRecorder

from nmt.config import InputError, Job
from nmt.training.batches import Corpus, train_files
from nmt.training.distributed import World
from nmt.training.packed.recording import WARM_UP, Recorder, packing_requested
from nmt.training.step import Trainer

CPU = torch.device("cpu")
MakeJob = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def _packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NMT_GRAPH", "1")


def trained(job: dict[str, Any], given: Recorder | None, updates: int = 24) -> tuple[list[float], list[torch.Tensor]]:
    """The losses and gradient norms of all updates, and the weights after the last."""
    trainer = Trainer(Job.model_validate(job), World(0, 1, CPU), given)
    found = []
    for update in trainer.updates(Corpus(train_files(Path(job["corpus"]))), updates):
        trainer.step(update)
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


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("shards", [1, 4])
def test_repeated_passes_train_the_same_bits(tiny_job: MakeJob, precision: str, shards: int) -> None:
    """With dropout, on updates of other sizes, while the weights change."""
    job = tiny_job(precision=precision, shards=shards)
    job["model"] |= {"P_drop": 0.2, "attention_dropout": 0.1, "relu_dropout": 0.1}
    counting = Counting()
    assert same(trained(job, counting), trained(job, None))
    assert 1 <= counting.recordings <= 12
    passes = 24 * shards
    # Each shape runs WARM_UP times and once to be compared; the recording repeats that pass first.
    assert counting.repetitions >= passes - counting.recordings * WARM_UP - 12 * (WARM_UP + 1)


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
    assert error.startswith("recording does not work here (a repeated pass has another gradient, by ")
    assert error.endswith("): training continues, but slower\n")
    assert wrong.recordings == error.count("\n") == 1


def test_what_cannot_be_recorded_runs_as_before(tiny_job: MakeJob, capsys: pytest.CaptureFixture[str]) -> None:
    class Fails(CpuRecorder):
        def record(self, run: Callable[[], None]) -> Callable[[], None]:
            run()
            raise RuntimeError("operation failed due to a previous error during capture\nmore about it")

    expected = trained(tiny_job(), None)
    assert same(trained(tiny_job(), Fails()), expected)
    assert capsys.readouterr().err == (
        "recording does not work here (operation failed due to a previous error during capture): training continues, "
        "but slower\n"
    )


def test_a_gradient_that_is_not_finite_is_no_reason_to_stop_recording(
    tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pass that should be recorded has no number to compare: the next one of its shape is recorded."""
    counting, job = Counting(), Job.model_validate(tiny_job(shards=1))
    trainer = Trainer(job, World(0, 1, CPU), counting)
    (update,) = trainer.updates(Corpus(train_files(Path(job.corpus))), 1)
    losses, calls = trainer._recorded_pass._losses, 0

    def sometimes_infinite(batch: Any) -> Any:
        nonlocal calls
        calls += 1
        smoothed, likelihood = losses(batch)
        return (smoothed * torch.inf if calls == WARM_UP + 1 else smoothed), likelihood

    monkeypatch.setattr(trainer._recorded_pass, "_losses", sometimes_infinite)
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
    trainer._recorded_pass.shapes = ()
    for _ in range(WARM_UP + 2):
        trainer.step(update)
    assert counting.recordings == 0
    trainer._recorded_pass.shapes = (update.shards[0].shape,)
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
    assert any(table() is tensor for tensor in trainer._recorded_pass._read)


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
