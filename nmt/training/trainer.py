"""Training as section 5 describes it: the loop around `Trainer.step`; resumable at any update.

torchrun runs `python -m nmt.training.trainer FOLDER` for each device. FOLDER holds `job.yaml` (a Job), and
`last_update` where the attempt ends before `training.updates`. The training writes there:

    resume/          the last complete state
    checkpoints/     weights for averaging
    states/          states kept to train parts of the training again
    history.jsonl    one record per interval, one per validation
    chain.jsonl      hashes of the training at intervals
    skipped.jsonl    the lines of updates whose gradient was not finite
    earlier-N/       logs and checkpoints of earlier attempts that no saved state continues
    rehearsed        on which GPU passes could be recorded
    done.json        at the end, or else `interrupted` (it was asked to stop) or `failed.json` (an error)

The stage `train` holds `lock` there while the training runs.
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

from nmt.common.files import flush, read_yaml
from nmt.common.processes import INTERRUPTED, TRAINERS, UNRECORDED, die_with_parent, sharing
from nmt.config import InputError, Job
from nmt.training import chain, checkpoint, state
from nmt.training.batches import Corpus, ahead, check_positions, train_files
from nmt.training.distributed import World, join_world, peer_is_lost
from nmt.training.history import History, record_failure
from nmt.training.measurements import Measurements
from nmt.training.packed.rehearsal import recorder_for
from nmt.training.state import TrainState
from nmt.training.step import Trainer

__all__ = ["Job", "Trainer", "train"]


class Attempt:
    """One attempt at a training: it resumes, trains, reports and saves, until the last update or a request to stop."""

    def __init__(self, trainer: Trainer, corpus: Corpus, folder: Path) -> None:
        self.trainer, self.corpus, self.folder = trainer, corpus, folder
        self.settings = trainer.settings
        self.history = History(folder, trainer.job, trainer.world)
        self.report_every = max(1, min(100, self.settings.updates // 100))
        self.keep_every = chain.keep_every(self.settings, self.report_every)
        self.recorded = {"updates": self.settings.updates, "validate_every": self.settings.validate_every}
        """What decides after which updates losses are recorded."""
        self._saved = time.monotonic()

    def resume(self) -> None:
        """Load the newest state, check that all ranks have it, and discard what was measured after it."""
        trainer, world = self.trainer, self.trainer.world
        path = checkpoint.latest_resume(self.folder / "resume")
        if path is None:
            loaded = TrainState.initial(trainer.conditions(), world.size)
        else:
            loaded = state.load_state(path, trainer.model, trainer.optimizer)
        trainer.measured = Measurements(world, loaded.with_lost_time(self.history.last_seconds()))
        if world.size > 1:
            checksums = self.corpus.checksum(), trainer.weights_checksum()
            state.check_ranks_agree(world, trainer.job.corpus, checksums[0], trainer.update, checksums[1])
        world.barrier()
        if path is None and self.settings.fork is not None:
            raise InputError(
                f"this training is a fork, but no state is in {self.folder / 'resume'}: run `wmt fork` where the run "
                "is that it was made from"
            )
        if path is not None:
            trainer.measured.resumes += 1
        if not world.main:
            return
        # All ranks have started again, so an earlier failure no longer counts.
        (self.folder / "failed.json").unlink(missing_ok=True)
        if path is None:
            state.move_earlier_files(self.folder, (*self.history.paths, *chain.kept_states(self.folder).values()))
            return
        state.remove_later_checkpoints(self.folder, trainer.update)
        self.history.remove_after(trainer.update, trainer.update - loaded.interval.updates)
        chain.remove_later_states(self.folder, trainer.update)
        before = {"updates": loaded.updates, "validate_every": loaded.validate_every}
        if None not in before.values() and before != self.recorded:
            # Losses are recorded after other updates from here on: no link covers both kinds.
            settings = self.settings.model_copy(update=before)
            chain.add_link(self.folder, settings, trainer.update, trainer.model, trainer.optimizer, loaded.conditions)
        if self.keeps(trainer.update):  # A kill may have come between saving and keeping it.
            chain.keep_state(self.folder)
        state.print_resume(loaded, trainer.conditions(), self.settings.updates)

    def train(self, valid: Corpus, last_update: int) -> bool:
        """Train until `last_update` or until patience ends; return False if a rank was asked to stop before."""
        trainer, settings, world = self.trainer, self.settings, self.trainer.world
        end = trainer.update if self.patience_ended() else last_update
        for update in ahead(trainer.updates(self.corpus, end)):
            trainer.step(update)
            if update.number % settings.checkpoint_every == 0 and world.main:
                folder = self.folder / "checkpoints"
                checkpoint.save_checkpoint(folder, update.number, trainer.model, settings.keep_checkpoints)
            last = update.number == settings.updates
            planned = update.number % settings.validate_every == 0
            if planned or last:
                trainer.measured.add_validation(trainer.validate(valid), counts=planned)
                self.history.log_validation(trainer.measured)
            reported = update.number % self.report_every == 0 or last
            if reported:
                self.report()
            if chain.is_link(settings, update.number):
                self.add_link()
            if reported and time.monotonic() - self._saved > 60 * settings.resume_minutes:
                self.save()
            if self.patience_ended():
                break
            if not last and trainer.any_stop_requested():
                self.stop()
                return False
        trainer.measured.collect()
        self.add_link()
        self.save()
        self.history.write_summary(trainer.measured, sum(parameter.numel() for parameter in trainer.parameters))
        return True

    def patience_ended(self) -> bool:
        """Return whether the configured number of consecutive validations had no better perplexity."""
        patience = self.settings.patience
        return patience is not None and self.trainer.measured.validations_since_best >= patience

    def report(self) -> None:
        """Log the interval since the last report."""
        measured = self.trainer.measured
        self.log_skipped()
        self.history.log_interval(measured, measured.take_interval())

    def log_skipped(self) -> None:
        """Sum what was measured since the last call, and log updates without a finite gradient; every rank calls it."""
        self.history.log_skipped(self.corpus, self.trainer.measured.check_gradients())

    def keeps(self, update: int) -> bool:
        """Return whether the state after an update is kept."""
        return self.keep_every is not None and update % self.keep_every == 0 and update < self.settings.updates

    def add_link(self) -> None:
        """Append a link to the chain of hashes on the main rank; keep the state every `keep_every` updates."""
        trainer, update = self.trainer, self.trainer.update
        if self.keeps(update):
            self.log_skipped()  # A saved state has the sums of an unfinished interval, from every rank.
        if not trainer.world.main:
            return
        chain.add_link(self.folder, self.settings, update, trainer.model, trainer.optimizer, trainer.conditions())
        if self.keeps(update):
            self.save()
            chain.keep_state(self.folder)

    def stop(self) -> None:
        """Save the state between two reports, with the sums of the unfinished interval; every rank calls it."""
        self.log_skipped()
        self.save()

    def save(self) -> None:
        """Save the state on the main rank. Clocks differ, so only the main rank decides when.

        The others do not wait.
        """
        self._saved = time.monotonic()
        trainer = self.trainer
        if trainer.world.main:
            # Flush the logs before saving: a resumed training does not rewrite records before the saved update.
            for path in filter(Path.exists, self.history.paths):
                flush(path)
            saved = trainer.measured.state(trainer.conditions()).model_copy(update=self.recorded)
            state.save_state(self.folder / "resume", saved, trainer.model, trainer.optimizer)


def train(job: Job, folder: Path, world: World) -> bool:
    """Train until the last update, resuming from the state in `folder`; return False if asked to stop before.

    The last update is that of the file `last_update` in `folder` or, without it, `training.updates`.
    """
    corpus = Corpus(train_files(Path(job.corpus)))
    valid = Corpus([Path(job.corpus) / "valid.arrow"])
    check_positions(job.model, corpus, valid)
    attempt = Attempt(Trainer(job, world, recorder_for(folder, world.device)), corpus, folder)
    attempt.resume()
    earlier_end = folder / "last_update"
    last_update = int(earlier_end.read_text(encoding="utf-8")) if earlier_end.exists() else job.training.updates
    with stop_on_signals(attempt.trainer):
        return attempt.train(valid, last_update)


def stand_by(folder: Path, world: World) -> bool:
    """Wait for the end of a training that this process has no part in; return whether it reached its last update.

    torchrun starts all processes anew when one of the others is lost, and then this one may take part.
    """
    print(f"process {world.rank} stands by: training.shards lets {world.size} processes train", flush=True)
    while not (folder / "done.json").exists():
        if (folder / "interrupted").exists():
            return False
        time.sleep(1.0)
    return True


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


def fail(folder: Path, state: str, error: str) -> None:
    """Record a failure; exit with UNRECORDED where that fails too: a failure that nobody knows of is repeated."""
    try:
        record_failure(folder, state, error)
    except OSError as reason:
        print(f"train: {error}; {folder / 'failed.json'} could not be written: {reason}", file=sys.stderr)
        sys.exit(UNRECORDED)


def main() -> None:
    """Run one of torchrun's workers: train the job in the given folder.

    A second argument is the id of torchrun's process.

    torchrun turns every exit status into 1, so the outcome is a file in the folder: `done.json`, `interrupted`, or
    `failed.json` if this worker itself failed. A worker that only lost its peers writes none.
    """
    if len(sys.argv) not in {2, 3}:
        sys.exit("usage: python -m nmt.training.trainer JOB [TORCHRUN]")
    # If torchrun is killed with SIGKILL, its workers would otherwise live on and occupy the devices. It may have been
    # killed already, while this one was importing.
    die_with_parent(signal.SIGKILL, *map(int, sys.argv[2:]))
    folder = Path(sys.argv[1])
    torch.set_flush_denormal(True)
    job = Job.model_validate(read_yaml(folder / "job.yaml"))
    try:
        with sharing(folder / TRAINERS), join_world(job.training.shards) as world:
            finished = stand_by(folder, world) if world.spare else train(job, folder, world)
            if not finished and world.main:
                (folder / "interrupted").touch()
    except InputError as error:
        fail(folder, "refused", str(error))
        sys.exit(f"train: {error}")
    except Exception as error:
        if not peer_is_lost(error):
            fail(folder, "failed", f"{type(error).__name__}: {error}")
        raise
    if not finished:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
