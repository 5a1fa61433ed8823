"""Micro-batches that the memory does not hold: halved, with the same gradients; what fits is found and remembered."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from nmt import memory
from nmt.batches import Corpus, MicroBatch, train_files, updates
from nmt.config import InputError
from nmt.dist import World
from nmt.history import read_history
from nmt.trainer import Job, Trainer, train

ALONE = World(0, 1, torch.device("cpu"))
MakeJob = Callable[..., dict[str, Any]]
ROOM = 40
"""Positions that the pretended device holds."""


@pytest.fixture
def small_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that runs out of memory in the backward pass, when part of the gradients is already there."""
    losses = Trainer.losses

    class Full(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            raise torch.OutOfMemoryError("pretended")

    def limited(self: Trainer, batch: MicroBatch, eps_ls: float) -> tuple[torch.Tensor, torch.Tensor]:
        if torch.is_grad_enabled() and max(batch.src.numel(), batch.tgt_in.numel()) > ROOM:
            # The encoder's gradients are the last to come: the decoder's are there before the memory is full.
            encode = self.model.encode
            self.model.encode = lambda *given: Full.apply(encode(*given))
            try:
                return losses(self, batch, eps_ls)
            finally:
                del self.model.encode
        return losses(self, batch, eps_ls)

    monkeypatch.setattr(Trainer, "losses", limited)


def gradients(job: Job, micro_tokens: int) -> tuple[list[torch.Tensor], torch.Tensor, int]:
    corpus = Corpus(train_files(Path(job.corpus)))
    one = Trainer(job, ALONE, micro_tokens)
    found: list[torch.Tensor] = []
    one.optimizer.step = lambda: found.extend(p.grad.clone() for p in one.parameters)
    for update in updates(corpus, 1, 120, lambda: micro_tokens, 0, 1, 1, 1):
        one.step(update)
    return found, one.interval, one.micro_tokens


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
    assert "out of memory at 1,000 positions" in capsys.readouterr().err
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


def test_ranks_that_remember_different_sizes_take_the_least(tmp_path: Path, tiny_job: MakeJob) -> None:
    """One was told, the other chooses: both must take part in agreeing on it."""
    script = (
        "import sys\nfrom pathlib import Path\nimport torch, yaml\nfrom nmt import memory\n"
        "from nmt.dist import world\nfrom nmt.trainer import Job, Trainer\n"
        "job = Job.model_validate(yaml.safe_load(Path(sys.argv[1]).read_text()))\n"
        "with world(store=sys.argv[2]) as place:\n"
        "    print(memory.micro_tokens(Trainer(job, place, 0), Path(sys.argv[1]).parent, 9))\n"
    )
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(tiny_job()))
    words = [sys.executable, "-c", script, str(tmp_path / "job.yaml"), f"file://{tmp_path}/store"]
    ranks = [
        subprocess.Popen(
            words, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", **told},
        )
        for rank, told in enumerate([{}, {"NMT_MICRO_TOKENS": "77"}])
    ]  # fmt: skip
    assert [rank.communicate(timeout=60)[0] for rank in ranks] == ["77\n", "77\n"]


def test_sizes_of_several_devices_are_remembered(tmp_path: Path) -> None:
    memory.remember(tmp_path, "A100", 5000)
    memory.remember(tmp_path, "H100", 9000)
    assert (memory.remembered(tmp_path, "A100"), memory.remembered(tmp_path, "H100")) == (5000, 9000)


def test_what_was_found_is_remembered_and_used_again(tmp_path: Path, tiny_job: MakeJob, small_device: None) -> None:
    job = Job.model_validate(tiny_job(updates=12))
    assert train(job, tmp_path, ALONE, micro_tokens=1000)
    known = memory.remembered(tmp_path, "cpu")
    assert known is not None
    assert known <= ROOM
    assert memory.micro_tokens(Trainer(job, ALONE, 0), tmp_path, longest=9) == known
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
        memory.micro_tokens(Trainer(Job.model_validate(tiny_job()), ALONE, 0), tmp_path, 9)


def test_the_size_doubles_until_it_does_not_fit(tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(Job.model_validate(tiny_job()), ALONE, 0)
    monkeypatch.setattr(memory, "fits", lambda trainer, size, longest: size <= 5000)
    assert memory.by_trial(trainer, 9, most=100_000) == 4096
    assert memory.by_trial(trainer, 9, most=3000) == 3000
    assert memory.by_trial(trainer, 9, most=500) == memory.ON_CPU
