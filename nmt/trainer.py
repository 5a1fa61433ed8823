"""Training as section 5 tells it: the update on one screen, the loop on another, resumable at any point.

`python -m nmt.trainer JOB` is what torchrun runs on each device. JOB is a folder with `job.yaml` (a Job); there
the training keeps its state: `resume/` (the last whole state), `checkpoints/` (for averaging), `history.jsonl`
(what it measured, a line an interval) and, at the end, `done.json`, `interrupted` when it was asked to stop, or
`refused` when the user must mend something.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import yaml
from torch import Tensor

from nmt import checkpoint
from nmt.batches import Corpus, Update, ahead, micro_batch, pack, train_files, updates
from nmt.config import InputError, ModelSettings, Settings, TrainingSettings
from nmt.dist import World, world
from nmt.flops import LengthSums
from nmt.history import Log
from nmt.loss import smoothed_cross_entropy
from nmt.model import Transformer
from nmt.parent import die_with_parent
from nmt.schedule import learning_rate

INTERRUPTED = 75
"""The exit status after SIGTERM: the state is saved and training can go on."""


class Job(Settings):
    """What to train, on what."""

    model: ModelSettings
    training: TrainingSettings
    vocabulary: int
    corpus: str
    """The folder of the binned corpus."""


class Trainer:
    """One rank's model, optimizer and measurements. `step` is the update; `train` the loop around it."""

    def __init__(self, job: Job, place: World, micro_tokens: int) -> None:
        self.job, self.world, self.micro_tokens = job, place, micro_tokens
        self.settings = job.training
        torch.manual_seed(self.settings.seed)
        self.model = Transformer(job.model, job.vocabulary).to(place.device)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.Adam(
            self.parameters, betas=(self.settings.beta1, self.settings.beta2), eps=self.settings.epsilon, fused=True
        )
        self.update = 0
        self.sums = LengthSums.zero()
        """Of all pairs trained on."""
        self.interval = torch.zeros(5, dtype=torch.float64, device=place.device)
        """Since the last report: smoothed loss, log-likelihood, gradient norm, skipped updates, padded positions."""
        self.interval_tokens = 0
        self.stop_asked = False

    def step(self, update: Update) -> None:
        """The update: gradients summed over micro-batches and ranks, divided once by all target tokens; Adam, Eq. 3."""
        self.model.train()
        tokens = update.sums.target
        for number, batch in enumerate(update.batches):
            # Drawn anew from where training stands, so that resuming needs no random state.
            torch.manual_seed(stream(self.settings.seed, update.number, self.world.rank, number))
            smoothed, negative_log_likelihood = self.losses(batch.to(self.world.device), self.settings.eps_ls)
            (smoothed / tokens).backward()
            self.interval[0] += smoothed.detach()
            self.interval[1] += negative_log_likelihood
        gradients = self._summed_gradients()
        norm = torch.nn.utils.get_total_norm(gradients)
        not_finite = (~torch.isfinite(norm)).float()
        # Fused Adam leaves weights and moments alone where found_inf is 1; no need to ask the device before.
        self.optimizer.found_inf = not_finite  # type: ignore[attr-defined]
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(update.number, self.job.model.d_model, self.settings)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.interval[2] += norm.nan_to_num(0.0, 0.0, 0.0)
        self.interval[3] += not_finite
        self.interval[4] += update.padded
        self.interval_tokens += tokens
        self.update = update.number
        self.sums += update.sums

    def losses(self, batch: Any, eps_ls: float) -> tuple[Tensor, Tensor]:
        """Smoothed loss and negative log-likelihood of a micro-batch, summed over its target tokens."""
        with self._precision():
            states = self.model(batch.src, batch.tgt_in)
        states = states.flatten(0, 1).index_select(0, batch.positions)
        return smoothed_cross_entropy(states, self.model.embedding.table, batch.labels, eps_ls)

    def _precision(self) -> Any:
        if self.settings.precision == "bfloat16":
            return torch.autocast(self.world.device.type, dtype=torch.bfloat16)
        return nullcontext()

    def _summed_gradients(self) -> list[Tensor]:
        """Gradients over all ranks. A rank without a sentence brings zeros: every rank takes part in every sum."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if self.world.size > 1:
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            self.world.sum(flat)
            for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
                gradient.copy_(part.view_as(gradient))
        return gradients

    @torch.no_grad()
    def validate(self, corpus: Corpus) -> float:
        """Negative log-likelihood a target subword, without smoothing, in nats; its exp is the perplexity."""
        self.model.eval()
        indices = torch.arange(self.world.rank, len(corpus), self.world.size).numpy()
        total = torch.zeros(2, dtype=torch.float64, device=self.world.device)
        for part in pack(corpus, indices, self.micro_tokens):
            _, negative_log_likelihood = self.losses(micro_batch(corpus, part).to(self.world.device), 0.0)
            total += torch.stack((negative_log_likelihood, total.new_tensor(int(corpus.tgt_lengths[part].sum()))))
        likelihood, tokens = self.world.sum(total).tolist()
        return float(likelihood / tokens)

    def stop_agreed(self) -> bool:
        """Whether any rank was asked to stop. Asked after every update on a CPU; on GPUs, where it waits, after ten."""
        if self.world.device.type != "cpu" and self.update % 10 != 0:
            return False
        asked = torch.tensor(float(self.stop_asked), device=self.world.device)
        return bool(self.world.sum(asked).item())

    def report(self) -> dict[str, int | float]:
        """Means over the updates since the last report, over all ranks."""
        values = self.world.sum(self.interval.clone()).tolist()
        smoothed, likelihood, norm, skipped, padded = values
        tokens = max(1, self.interval_tokens)
        self.interval.zero_()
        self.interval_tokens = 0
        return {
            "loss": smoothed / tokens, "nll": likelihood / tokens, "gradient_norm": norm / self.world.size,
            "skipped": skipped / self.world.size, "padded": padded, "tokens": float(tokens),
        }  # fmt: skip


def stream(seed: int, update: int, rank: int, micro: int) -> int:
    """The seed of one micro-batch's random numbers: distinct for every place in training, equal after a resume."""
    mixed = 0
    for part in (seed, update, rank, micro):
        mixed = ((mixed ^ part) * 0x9E3779B97F4A7C15 + 0x7F4A7C15) % 2**64
        mixed ^= mixed >> 29
    return mixed % 2**63


def train(job: Job, folder: Path, place: World, micro_tokens: int) -> bool:
    """Train until the last update, going on from `folder`'s state; False when asked to stop before."""
    settings = job.training
    corpus = Corpus(train_files(Path(job.corpus)))
    valid = Corpus([Path(job.corpus) / "valid.arrow"])
    trainer = Trainer(job, place, micro_tokens)
    log = Log(folder, trainer, settings.updates)
    log.resume()
    with asked_to_stop(trainer):
        start = trainer.update + 1
        feed = updates(
            corpus, settings.seed, settings.tokens, micro_tokens, place.rank, place.size, start, settings.updates
        )
        for update in ahead(feed):
            trainer.step(update)
            if update.number % settings.checkpoint_every == 0 and place.main:
                checkpoint.save_checkpoint(
                    folder / "checkpoints", update.number, trainer.model, settings.keep_checkpoints
                )
            last = update.number == settings.updates
            if update.number % settings.validate_every == 0 or last:
                log.validation(trainer.validate(valid))
            log.interval(last)
            if not last and trainer.stop_agreed():
                log.save()
                return False
            if log.patience_ended():
                break
    log.finish()
    return True


@contextmanager
def asked_to_stop(trainer: Trainer) -> Iterator[None]:
    """SIGTERM and SIGINT ask for a stop after the current update."""

    def ask(signum: int, frame: FrameType | None) -> None:
        trainer.stop_asked = True

    old = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def micro_tokens(device: torch.device) -> int:
    """Padded positions a side that go through the model together: `$NMT_MICRO_TOKENS`, else what suits the device.

    On a CPU few, so that what a layer hands to the next is still in the cache and little is padding. On a GPU 1,000 a
    GiB of its memory, a guess that no measurement stands behind yet.
    """
    if wanted := os.environ.get("NMT_MICRO_TOKENS"):
        if not wanted.isdecimal() or int(wanted) < 1:
            raise InputError(f"NMT_MICRO_TOKENS is {wanted!r}: it must be a whole number from 1 on, or unset")
        return int(wanted)
    if device.type == "cpu":
        return 1024
    return max(1024, int(torch.cuda.get_device_properties(device).total_memory / 2**30 * 1000))


def main() -> None:
    """A worker of torchrun: trains the job in the folder given."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m nmt.trainer JOB")
    # A SIGKILL of torchrun would leave its workers alive, and holding the devices.
    die_with_parent()
    folder = Path(sys.argv[1])
    torch.set_flush_denormal(True)
    job = Job.model_validate(yaml.safe_load((folder / "job.yaml").read_text(encoding="utf-8")))
    try:
        with world() as place:
            finished = train(job, folder, place, micro_tokens(place.device))
    except InputError as error:
        # Exit statuses do not survive torchrun, which turns them all into 1.
        (folder / "refused").touch()
        sys.exit(f"train: {error}")
    if not finished:
        (folder / "interrupted").touch()
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
