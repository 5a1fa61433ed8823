"""Micro-batches that the memory does not hold: halved, with the same gradients; what fits is found and cached."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from devices import LimitedMemory, losses_with_room_for

from nmt.config import InputError, Job
from nmt.training import micro_batch_size
from nmt.training.batches import Corpus, MicroBatch, train_files, updates
from nmt.training.distributed import World, device_name
from nmt.training.history import read_history
from nmt.training.step import Trainer
from nmt.training.trainer import train

ALONE = World(0, 1, torch.device("cpu"))
MakeJob = Callable[..., dict[str, Any]]
ROOM = 40
"""Positions that the pretended device holds."""


@pytest.fixture
def small_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that runs out of memory in the backward pass, when part of the gradients is already there."""
    monkeypatch.setattr(Trainer, "losses", losses_with_room_for(ROOM))


def gradients(job: Job, micro_tokens: int) -> tuple[list[torch.Tensor], torch.Tensor, int]:
    corpus = Corpus(train_files(Path(job.corpus)))
    one = Trainer(job, ALONE, micro_tokens)
    found: list[torch.Tensor] = []
    one.optimizer.step = lambda: found.extend(p.grad.clone() for p in one.parameters)
    for update in updates(corpus, 1, 120, lambda: micro_tokens, 0, 1, 1, 1):
        one.step(update)
    return found, one.measured.totals, one.micro_tokens


def test_halves_have_the_same_gradients_and_losses(
    tiny_job: MakeJob, small_device: None, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tiny_job()
    settings["model"]["P_drop"] = 0.0
    job = Job.model_validate(settings)
    whole, losses, kept = gradients(job, ROOM)
    assert kept == ROOM
    halved, same_losses, lowered = gradients(job, 1000)
    assert lowered <= ROOM
    assert "ran out of memory at 1,000 positions and continues with" in capsys.readouterr().err
    for one, other in zip(whole, halved, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(losses[:2], same_losses[:2])


def test_what_filled_the_memory_is_let_go_of_before_the_next_try(
    tiny_job: MakeJob, small_device: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited, tried = Trainer.losses, list[weakref.ref[torch.Tensor]]()

    def watched(self: Trainer, batch: MicroBatch, eps_ls: float) -> tuple[torch.Tensor, torch.Tensor]:
        assert not [one for one in tried if one() is not None]
        smoothed, likelihood = limited(self, batch, eps_ls)
        tried.append(weakref.ref(smoothed))
        return smoothed, likelihood

    monkeypatch.setattr(Trainer, "losses", watched)
    gradients(Job.model_validate(tiny_job()), 1000)
    assert len(tried) > 3


def test_sizes_of_several_devices_are_cached(tmp_path: Path) -> None:
    micro_batch_size.cache_micro_tokens(tmp_path, "A100", 5000)
    micro_batch_size.cache_micro_tokens(tmp_path, "H100", 9000)
    sizes = [micro_batch_size.cached_micro_tokens(tmp_path, device) for device in ("A100", "H100")]
    assert sizes == [5000, 9000]


def test_a_lowered_size_is_cached_and_used_again(tmp_path: Path, tiny_job: MakeJob, small_device: None) -> None:
    job = Job.model_validate(tiny_job(updates=12))
    assert train(job, tmp_path, ALONE, micro_tokens=1000)
    known = micro_batch_size.cached_micro_tokens(tmp_path, "cpu")
    assert known is not None
    assert known <= ROOM
    assert micro_batch_size.choose_micro_tokens(Trainer(job, ALONE, 0), tmp_path, longest=9) == known
    assert len([record for record in read_history(tmp_path / "history.jsonl") if "loss" in record]) == 12


def test_a_pair_that_does_not_fit_alone_is_told() -> None:
    batch = MicroBatch(torch.ones(1, 300).long(), torch.ones(1, 7).long(), torch.arange(7), torch.ones(7).long())
    with pytest.raises(InputError, match=r"a single pair of 300 and 7 subwords does not fit .* binning.max_length"):
        batch.halves()


def test_halves_hold_what_the_whole_held() -> None:
    tgt = torch.tensor([[1, 5, 0], [1, 6, 7], [1, 0, 0]])
    labels = torch.tensor([5, 2, 6, 7, 2, 2])
    batch = MicroBatch(torch.tensor([[5, 2], [6, 2], [7, 2]]), tgt, torch.tensor([0, 1, 3, 4, 5, 6]), labels)
    first, second = batch.halves()
    assert first.positions.tolist() == [0, 1]
    assert first.labels.tolist() == [5, 2]
    assert second.positions.tolist() == [0, 1, 2, 3]
    assert second.labels.tolist() == [6, 7, 2, 2]
    assert torch.equal(torch.cat((first.src, second.src)), batch.src)
    assert torch.equal(torch.cat((first.tgt_in, second.tgt_in)), tgt)


@pytest.mark.parametrize("wanted", ["0", "-3", "many"])
def test_a_wrong_size_is_refused(
    tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    monkeypatch.setenv("NMT_MICRO_TOKENS", wanted)
    with pytest.raises(InputError, match=f"NMT_MICRO_TOKENS is '{wanted}'"):
        micro_batch_size.choose_micro_tokens(Trainer(Job.model_validate(tiny_job()), ALONE, 0), tmp_path, 9)


def smallest_capacity(trainer: Trainer, size: int, longest: int) -> int:
    """The bytes that a device needs for `fits`, measured where there is more than enough."""
    measured = LimitedMemory(10**12)
    with measured:
        assert micro_batch_size.fits(trainer, size, longest, measured)
    moments = 2 * sum(4 * parameter.numel() for parameter in trainer.parameters)
    return math.ceil((measured.most + moments) / micro_batch_size.SHARE)


def test_what_fits_is_measured_with_room_for_the_moments_and_the_rest(tiny_job: MakeJob) -> None:
    trainer = Trainer(Job.model_validate(tiny_job()), ALONE, 0)
    enough = smallest_capacity(trainer, 900, 9)
    for capacity, expected in [(enough, True), (enough - 2, False)]:
        device = LimitedMemory(capacity)
        with device:
            assert micro_batch_size.fits(trainer, 900, 9, device) is expected
        assert device.out_of_memory == 0
        # What the trial computed is gone again, and no update counts it.
        assert all(parameter.grad is None for parameter in trainer.parameters)
        assert trainer.measured.totals.tolist() == [0, 0, 0, 0]


def test_a_trial_that_runs_out_of_memory_does_not_fit(tiny_job: MakeJob) -> None:
    trainer = Trainer(Job.model_validate(tiny_job()), ALONE, 0)
    for part in (0.1, 0.5):
        device = LimitedMemory(int(part * smallest_capacity(trainer, 900, 9)))
        with device:
            assert not micro_batch_size.fits(trainer, 900, 9, device)
        assert device.out_of_memory == 1
        assert all(parameter.grad is None for parameter in trainer.parameters)


def test_another_error_in_a_trial_is_raised(tiny_job: MakeJob) -> None:
    trainer = Trainer(Job.model_validate(tiny_job()), ALONE, 0)
    trainer.model.embedding.table.data = torch.zeros(16, 15)
    with pytest.raises(RuntimeError, match="size"):
        micro_batch_size.fits(trainer, 900, 9, LimitedMemory(10**12))


def test_longer_pairs_need_more_of_a_device(tiny_job: MakeJob) -> None:
    """Attention's weights grow with the square of the length: the trial must be of the longest pairs."""
    trainer = Trainer(Job.model_validate(tiny_job()), ALONE, 0)
    assert smallest_capacity(trainer, 900, 300) > 2 * smallest_capacity(trainer, 900, 9)
    # A pair longer than the size is tried alone.
    assert smallest_capacity(trainer, 9, 100) == smallest_capacity(trainer, 100, 100)


def test_the_size_doubles_until_it_does_not_fit(tiny_job: MakeJob) -> None:
    trainer = Trainer(Job.model_validate(tiny_job()), ALONE, 0)
    device = LimitedMemory(smallest_capacity(trainer, 5000, 9))
    with device:
        assert micro_batch_size.find_by_trial(trainer, 9, 100_000, device) == 4096
        assert micro_batch_size.find_by_trial(trainer, 9, 4096, device) == 4096
        assert micro_batch_size.find_by_trial(trainer, 9, 3000, device) == 3000
        assert micro_batch_size.find_by_trial(trainer, 9, 500, device) == micro_batch_size.ON_CPU == 2048
    # The first that fits is no trial: less would leave a device idle.
    none = LimitedMemory(1)
    assert micro_batch_size.find_by_trial(trainer, 9, 100_000, none) == 2048


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpus_memory_is_measured() -> None:
    device = torch.device("cuda", 0)
    gpu = micro_batch_size.GpuMemory(device)
    gpu.reset_peak()
    before, available = gpu.peak(), gpu.available()
    held = torch.empty(100 * 2**20, dtype=torch.uint8, device=device)
    assert gpu.peak() >= before + held.nbytes
    del held
    assert gpu.peak() >= before + 100 * 2**20
    gpu.reset_peak()
    assert gpu.peak() == before
    assert gpu.available() == pytest.approx(available, rel=0.05)


def test_out_of_memory_is_told_from_other_errors() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert micro_batch_size.out_of_memory(caught.value)
    assert micro_batch_size.out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not micro_batch_size.out_of_memory(RuntimeError("shapes differ"))


def test_the_choice_is_the_users_then_the_cached_then_the_cpus(
    tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(Job.model_validate(tiny_job()), ALONE, 0)
    monkeypatch.delenv("NMT_MICRO_TOKENS", raising=False)
    assert device_name(torch.device("cpu")) == "cpu"
    assert micro_batch_size.choose_micro_tokens(trainer, tmp_path, 9) == 2048
    # Nothing was found by trial, so nothing is cached.
    assert not (tmp_path / "micro.json").exists()
    micro_batch_size.cache_micro_tokens(tmp_path, "cpu", 333)
    micro_batch_size.cache_micro_tokens(tmp_path, "NVIDIA H100", 444)
    assert micro_batch_size.choose_micro_tokens(trainer, tmp_path, 9) == 333
    monkeypatch.setenv("NMT_MICRO_TOKENS", "1")
    assert micro_batch_size.choose_micro_tokens(trainer, tmp_path, 9) == 1
    assert micro_batch_size.cached_micro_tokens(tmp_path, "cpu") == 333
    assert micro_batch_size.cached_micro_tokens(tmp_path, "A100") is None
