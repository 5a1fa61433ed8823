"""Training as section 5 describes it: the loop around `Trainer.step`; resumable at any update.

torchrun runs `python -m nmt.training.trainer FOLDER` for each device. FOLDER holds `job.yaml` (a Job). The training
writes there `resume/` (the last complete state), `checkpoints/` (for averaging), `history.jsonl` (a record an interval)
and, at the end, one of `done.json`, `interrupted` (it was asked to stop) and `failed.json` (an error).
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch
import yaml

from nmt.common.processes import die_with_parent
from nmt.config import InputError, Job
from nmt.training import checkpoint, micro_batch_size, state
from nmt.training.batches import Corpus, ahead, check_positions, train_files, updates
from nmt.training.distributed import World, device_name, join_world, peer_is_lost
from nmt.training.history import History, record_failure
from nmt.training.measurements import Measurements
from nmt.training.state import TrainState
from nmt.training.step import Trainer

__all__ = ["Job", "Trainer", "train"]

INTERRUPTED = 75
"""The exit status after SIGTERM: the state is saved, and training can be resumed."""


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
        sizes = settings.tokens, lambda: trainer.micro_tokens
        ranks = world.rank, world.size
        feed = updates(self.corpus, settings.seed, *sizes, *ranks, trainer.update + 1, end)
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
