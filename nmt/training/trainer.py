"""Training as section 5 describes it: Trainer.step is one update, Run the loop around it; resumable at any update.

torchrun runs `python -m nmt.training.trainer FOLDER` for each device. FOLDER holds `job.yaml` (a Job). The training
writes there `resume/` (the last complete state), `checkpoints/` (for averaging), `history.jsonl` (a record an interval)
and, at the end, one of `done.json`, `interrupted` (it was asked to stop) and `failed.json` (an error).
"""

from __future__ import annotations

import signal
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor, nn

from nmt.common.processes import die_with_parent
from nmt.config import InputError
from nmt.loss import smoothed_cross_entropy
from nmt.model import Transformer
from nmt.schedule import learning_rate
from nmt.training import checkpoint, micro_batch_size, state
from nmt.training.batches import (
    Corpus,
    MicroBatch,
    Update,
    ahead,
    check_positions,
    micro_batch,
    pack,
    train_files,
    updates,
)  # fmt: skip
from nmt.training.compilation import compile_layers
from nmt.training.distributed import World, device_name, join_world, peer_is_lost
from nmt.training.gradients import Gradients
from nmt.training.history import History, record_failure
from nmt.training.job import Job
from nmt.training.measurements import Measurements
from nmt.training.state import Setting, TrainState

__all__ = ["Job", "Trainer", "train"]

INTERRUPTED = 75
"""The exit status after SIGTERM: the state is saved, and training can be resumed."""


class Trainer:
    """One rank's model, optimizer, gradients and measurements. `step` is the update."""

    def __init__(self, job: Job, world: World, micro_tokens: int) -> None:
        self.job, self.world = job, world
        self.micro_tokens = micro_tokens
        """Padded positions per side that go through the model together; halved when memory runs out."""
        self.settings = job.training
        torch.manual_seed(self.settings.seed)
        self.model = Transformer(job.model, job.vocabulary, job.target_vocabulary).to(world.device)
        self.compiled = compile_layers(self.model, world.device)
        self.parameters = list(self.model.parameters())
        self.gradients = Gradients(self.parameters, world)
        self.optimizer = torch.optim.Adam(
            self.parameters, betas=(self.settings.beta1, self.settings.beta2), eps=self.settings.epsilon, fused=True
        )
        self.measured = Measurements(world, TrainState.initial(self.setting()))
        self.stop_requested = False

    @property
    def update(self) -> int:
        """The last finished update."""
        return self.measured.update

    def setting(self) -> Setting:
        """Return what must be the same for a resumed training to be bit-identical."""
        return Setting.of(self.world, self.micro_tokens, self.compiled)

    def step(self, update: Update) -> None:
        """Train on an update: sum gradients over micro-batches and ranks, divide once by all target tokens, step Adam.

        The learning rate is Eq. 3.
        """
        self.model.train()
        tokens = update.sums.target
        self.gradients.start()
        for number, batch in enumerate(update.batches, start=1):
            # Seeded by the position in the training, so that resuming needs no random state.
            torch.manual_seed(stream(self.settings.seed, update.number, self.world.rank, number))
            self._accumulate(batch.to(self.world.device), tokens, self.parameters, number == len(update.batches))
        norm = torch.nn.utils.get_total_norm(self.gradients.finish())
        not_finite = (~torch.isfinite(norm)).float()
        # Fused Adam leaves weights and moments unchanged if found_inf is 1, so the host need not wait for the device.
        # GradScaler sets the same attribute, which the class does not declare.
        self.optimizer.found_inf = not_finite  # type: ignore[attr-defined]
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(update.number, self.job.model.d_model, self.settings)
        self.optimizer.step()
        self.measured.add_update(update, norm, not_finite)

    def _accumulate(self, batch: MicroBatch, tokens: int, parameters: Sequence[nn.Parameter], last: bool) -> None:
        """Add a micro-batch to the gradients of `parameters`, in halves if memory runs out."""
        self.gradients.expect(parameters, last)
        if self._fits(batch, tokens, parameters):
            return
        # Gradients that the failed pass has produced are complete: the halves compute only the pending ones.
        pending = list(self.gradients.pending)
        first, second = batch.halves()
        self._lower_micro_tokens(max(first.src.numel(), first.tgt_in.numel()))
        self._accumulate(first, tokens, pending, last=False)
        self._accumulate(second, tokens, pending, last)

    def _fits(self, batch: MicroBatch, tokens: int, parameters: Sequence[nn.Parameter]) -> bool:
        """Run both passes; return False if memory runs out, after the tensors that filled it are freed."""
        try:
            smoothed, negative_log_likelihood = self.losses(batch, self.settings.eps_ls)
            (smoothed / tokens).backward(inputs=parameters)
        except RuntimeError as error:
            if not micro_batch_size.out_of_memory(error):
                raise
            return False
        self.measured.add_losses(smoothed, negative_log_likelihood)
        return True

    def _lower_micro_tokens(self, tokens: int) -> None:
        if self.world.device.type == "cuda":
            torch.cuda.empty_cache()
        if tokens < self.micro_tokens:
            print(
                f"rank {self.world.rank} ran out of memory at {self.micro_tokens:,} positions and continues with "
                f"{tokens:,} at a time; the weights will not be bit-identical to an undisturbed run's",
                file=sys.stderr, flush=True,
            )  # fmt: skip
            self.micro_tokens = tokens

    def try_batch(self, batch: MicroBatch) -> None:
        """Run a forward and a backward pass and discard the gradients; raise torch's error if memory runs out."""
        try:
            smoothed, _ = self.losses(batch, self.settings.eps_ls)
            smoothed.backward()
        finally:
            self.gradients.start()

    def moments_bytes(self) -> int:
        """Return the bytes of Adam's two moments, which the first update allocates."""
        return 2 * sum(p.numel() * p.element_size() for p in self.parameters)

    def losses(self, batch: MicroBatch, eps_ls: float) -> tuple[Tensor, Tensor]:
        """Return smoothed loss and negative log-likelihood of a micro-batch, summed over its target tokens."""
        with self._precision():
            states = self.model(batch.src, batch.tgt_in)
        states = states.flatten(0, 1).index_select(0, batch.positions)
        if self.settings.precision == "bfloat16":
            # The last LayerNorm returns float32, and the product with the vocabulary is the model's largest.
            states = states.bfloat16()
        return smoothed_cross_entropy(states, self.model.output_table, batch.labels, eps_ls)

    def _precision(self) -> Any:
        if self.settings.precision == "bfloat16":
            return torch.autocast(self.world.device.type, dtype=torch.bfloat16)
        return nullcontext()

    @torch.no_grad()
    def validate(self, corpus: Corpus) -> float:
        """Return the unsmoothed negative log-likelihood per target subword, in nats; its exp is the perplexity."""
        self.model.eval()
        indices = np.arange(self.world.rank, len(corpus), self.world.size)
        total = torch.zeros(2, dtype=torch.float64, device=self.world.device)
        for part in pack(corpus, indices, self.micro_tokens):
            _, negative_log_likelihood = self.losses(micro_batch(corpus, part).to(self.world.device), 0.0)
            total += torch.stack((negative_log_likelihood, total.new_tensor(int(corpus.tgt_lengths[part].sum()))))
        likelihood, tokens = self.world.sum(total).tolist()
        return float(likelihood / tokens)

    def weights_checksum(self) -> int:
        """Return the CRC-32 of all weights, which must be the same on every rank."""
        checksum = 0
        for parameter in self.parameters:
            checksum = zlib.crc32(parameter.detach().cpu().numpy().data, checksum)
        return checksum

    def any_stop_requested(self) -> bool:
        """Return whether any rank was asked to stop."""
        return self.world.any(self.stop_requested)


def stream(seed: int, update: int, rank: int, micro: int) -> int:
    """Return the seed of a micro-batch's random numbers: distinct for every micro-batch, the same after a resume."""
    mixed = 0
    for part in (seed, update, rank, micro):
        mixed = ((mixed ^ part) * 0x9E3779B97F4A7C15 + 0x7F4A7C15) % 2**64
        mixed ^= mixed >> 29
    return mixed % 2**63


class Run:
    """One attempt at a training: it resumes, trains, reports and saves, until the last update or a request to stop."""

    def __init__(self, trainer: Trainer, corpus: Corpus, folder: Path) -> None:
        self.trainer, self.corpus, self.folder = trainer, corpus, folder
        self.settings = trainer.settings
        self.history = History(folder, trainer.job, trainer.world)
        self.report_every = max(1, min(100, self.settings.updates // 100))
        self._cached_micro_tokens = trainer.micro_tokens
        self._saved = time.monotonic()

    def resume(self) -> None:
        """Load the newest state, check that all ranks have it, and discard what was measured after it."""
        trainer, world = self.trainer, self.trainer.world
        path = checkpoint.latest_resume(self.folder / "resume")
        if path is None:
            loaded = TrainState.initial(trainer.setting())
        else:
            loaded = state.load_state(path, trainer.model, trainer.optimizer)
        trainer.measured = Measurements(world, loaded.with_lost_time(self.history.last_seconds()))
        if world.size > 1:
            checksums = self.corpus.checksum(), trainer.weights_checksum()
            state.check_ranks_agree(world, trainer.job.corpus, checksums[0], trainer.update, checksums[1])
        world.barrier()
        if path is not None:
            trainer.measured.resumes += 1
        if not world.main:
            return
        # All ranks are here, so the failure of an earlier attempt is over.
        (self.folder / "failed.json").unlink(missing_ok=True)
        if path is None:
            state.move_earlier_files(self.folder, (self.history.records_path, self.history.skipped_path))
            return
        state.remove_later_checkpoints(self.folder, trainer.update)
        self.history.remove_after(trainer.update)
        state.print_resume(loaded, trainer.setting(), self.settings.updates)

    def train(self, valid: Corpus) -> bool:
        """Train until the last update or until patience ends; return False if a rank was asked to stop before."""
        trainer, settings, world = self.trainer, self.settings, self.trainer.world
        end = trainer.update if self.patience_ended() else settings.updates
        feed = updates(
            self.corpus, settings.seed, settings.tokens, lambda: trainer.micro_tokens, world.rank, world.size,
            trainer.update + 1, end,
        )  # fmt: skip
        for update in ahead(feed):
            trainer.step(update)
            if update.number % settings.checkpoint_every == 0 and world.main:
                folder = self.folder / "checkpoints"
                checkpoint.save_checkpoint(folder, update.number, trainer.model, settings.keep_checkpoints)
            last = update.number == settings.updates
            if update.number % settings.validate_every == 0 or last:
                trainer.measured.add_validation(trainer.validate(valid))
                self.history.log_validation(trainer.measured)
            if update.number % self.report_every == 0 or last:
                self.report()
            if self.patience_ended():
                break
            if not last and trainer.any_stop_requested():
                self.stop()
                return False
        self.save()
        self.history.write_summary(trainer.measured, sum(parameter.numel() for parameter in trainer.parameters))
        return True

    def patience_ended(self) -> bool:
        """Return whether the configured number of consecutive validations had no better perplexity."""
        patience = self.settings.patience
        return patience is not None and self.trainer.measured.worse >= patience

    def report(self) -> None:
        """Log the interval since the last report; save the state if `resume_minutes` have passed."""
        trainer, measured = self.trainer, self.trainer.measured
        self._agree_on_micro_tokens()
        self.history.log_skipped(self.corpus, measured.check_gradients())
        self.history.log_interval(measured, measured.take_interval())
        if time.monotonic() - self._saved > 60 * trainer.settings.resume_minutes:
            self.save()

    def _agree_on_micro_tokens(self) -> None:
        """Take the minimum over all ranks; cache a size that was lowered because memory ran out."""
        trainer = self.trainer
        trainer.micro_tokens = trainer.world.minimum(trainer.micro_tokens)
        if trainer.world.main and trainer.micro_tokens < self._cached_micro_tokens:
            device = device_name(trainer.world.device)
            micro_batch_size.cache_micro_tokens(self.folder, device, trainer.micro_tokens)
        self._cached_micro_tokens = trainer.micro_tokens

    def stop(self) -> None:
        """Save the state between two reports, with the sums of the unfinished interval; every rank calls it."""
        measured = self.trainer.measured
        measured.sum_interval_over_ranks()
        skipped = measured.check_gradients()
        self.save()
        self.history.log_skipped(self.corpus, skipped)

    def save(self) -> None:
        """Save the state on the main rank. No rank waits for it: clocks differ, so only one decides when to save."""
        self._saved = time.monotonic()
        trainer = self.trainer
        if trainer.world.main:
            saved = trainer.measured.state(trainer.setting())
            state.save_state(self.folder / "resume", saved, trainer.model, trainer.optimizer)


def train(job: Job, folder: Path, world: World, micro_tokens: int | None = None) -> bool:
    """Train until the last update, resuming from the state in `folder`; return False if asked to stop before.

    `micro_tokens`: padded positions per side that go through the model together; None: as many as the device holds.
    """
    corpus = Corpus(train_files(Path(job.corpus)))
    valid = Corpus([Path(job.corpus) / "valid.arrow"])
    check_positions(job.model, corpus, valid)
    trainer = Trainer(job, world, micro_tokens or 0)
    if micro_tokens is None:
        longest = int(max(corpus.src_lengths.max(), corpus.tgt_lengths.max()))
        trainer.micro_tokens = micro_batch_size.choose_micro_tokens(trainer, folder, longest)
    run = Run(trainer, corpus, folder)
    run.resume()
    with stop_on_signals(trainer):
        return run.train(valid)


@contextmanager
def stop_on_signals(trainer: Trainer) -> Iterator[None]:
    """Make SIGTERM and SIGINT request a stop after the current update."""

    def request_stop(signum: int, frame: FrameType | None) -> None:
        trainer.stop_requested = True

    old = {number: signal.signal(number, request_stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def main() -> None:
    """Run one of torchrun's workers: train the job in the given folder.

    torchrun turns every exit status into 1, so the outcome is a file in the folder: `done.json`, `interrupted`, or
    `failed.json` if this worker itself failed. A worker that only lost its peers writes none.
    """
    if len(sys.argv) != 2:
        sys.exit("usage: python -m nmt.training.trainer JOB")
    # If torchrun is killed with SIGKILL, its workers would otherwise live on and occupy the devices.
    die_with_parent()
    folder = Path(sys.argv[1])
    torch.set_flush_denormal(True)
    job = Job.model_validate(yaml.safe_load((folder / "job.yaml").read_text(encoding="utf-8")))
    try:
        with join_world() as world:
            finished = train(job, folder, world)
            if not finished and world.main:
                (folder / "interrupted").touch()
    except InputError as error:
        record_failure(folder, "refused", str(error))
        sys.exit(f"train: {error}")
    except Exception as error:
        if not peer_is_lost(error):
            record_failure(folder, "failed", f"{type(error).__name__}: {error}")
        raise
    if not finished:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
