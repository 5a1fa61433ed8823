"""Training as section 5 describes it: the loop around `Trainer.step`; resumable at any update.

torchrun runs `python -m nmt.training.loop FOLDER` for each device. FOLDER holds `job.yaml` (a Job),
`start.safetensors` with `training.start_from`, and `last_update` where the attempt ends before `training.updates`. The
training writes there:

    resume/          the last complete state, and those kept to train parts of the training again
    checkpoints/     weights for averaging
    history.jsonl    one record per interval, two per validation
    chain.jsonl      hashes of the training at intervals
    done.json        at the end, or else `interrupted` (it was asked to stop) or `failed.json` (an error)

The stage `train` holds `lock` there while the training runs.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import Tensor

from nmt.common.files import FULL_DISK, flush, read_yaml, write_json
from nmt.common.processes import INTERRUPTED, TRAINERS, UNRECORDED, die_with_parent, sharing
from nmt.errors import InputError
from nmt.portable import arithmetic
from nmt.training import chain, checkpoint, history, state
from nmt.training.batches import Corpus, ahead, train_files
from nmt.training.distributed import World, join_world, peer_is_lost
from nmt.training.history import CHAIN, HISTORY, read_history
from nmt.training.measurements import Measurements
from nmt.training.settings import Job
from nmt.training.state import ResumeConditions, TrainState
from nmt.training.trainer import Trainer

__all__ = ["Job", "train"]


class Attempt:
    """One attempt at a training: it resumes, trains, reports and saves, until the last update or a request to stop."""

    def __init__(self, trainer: Trainer, corpus: Corpus, folder: Path) -> None:
        self.trainer, self.corpus, self.folder = trainer, corpus, folder
        self.settings = trainer.settings
        self.report_every = max(1, min(100, self.settings.updates // 100))
        self.keep_every = chain.keep_every(self.settings)
        self._saved = time.monotonic()
        self.writing = ThreadPoolExecutor(1, "links")
        self._link: Future[None] = Future()  # the last link of the chain and its checkpoint, which a thread writes
        self._link.set_result(None)

    def resume(self, path: Path | None, damaged: Sequence[Path]) -> None:
        """Load the state in `path`, check that all ranks are at its update, and discard what was measured after it."""
        trainer, world, loaded = self.trainer, self.trainer.world, None
        if path is not None:
            loaded = state.load_state(path, trainer.model, trainer.optimizer)
            if loaded.updates > self.settings.updates == loaded.update and loaded.update % loaded.validate_every:
                raise InputError(
                    f"a training of {loaded.updates:,} updates was stopped after update {loaded.update:,}, and not "
                    f"validated there: raise training.updates to {loaded.update + 1:,} or more"
                )
            recorded = max((record["seconds"] for record in read_history(self.folder / HISTORY)), default=0.0)
            trainer.measured = Measurements(world, loaded.resumed(recorded, trainer.measured.state))
        if len(set(world.gather(trainer.update))) > 1:
            # Network file systems show new files late: a restart finds them.
            raise RuntimeError(
                f"this rank would resume after update {trainer.update:,}, but another rank at a different one"
            )
        if not world.main:
            return
        for state_folder in damaged:
            message = "is damaged and removed: it does not have the hashes with which it was saved"
            print(f"{state_folder} {message}", flush=True)
            shutil.rmtree(state_folder)
        # All ranks have started again, so an earlier failure no longer counts.
        (self.folder / "failed.json").unlink(missing_ok=True)
        # Later checkpoints, records and links will be made again.
        for earlier in checkpoint.checkpoints(self.folder / "checkpoints"):
            if checkpoint.update_of(earlier) > trainer.update:
                earlier.unlink()
        history.remove_after(self.folder, trainer.update)
        if loaded is None:
            return
        before = {"updates": loaded.updates, "validate_every": loaded.validate_every}
        changed = any(getattr(self.settings, name) != value for name, value in before.items())
        if changed or loaded.conditions.differences(trainer.conditions()):
            # From here on, losses are recorded after other updates, or bits may differ. A link covers updates of one
            # kind: it ends here.
            settings = self.settings.model_copy(update=before)
            copies = chain.host_copies(trainer.model, trainer.optimizer)
            chain.add_link(self.folder, settings, trainer.update, copies, loaded.conditions)
        self.print_resume(loaded)

    def print_resume(self, loaded: TrainState) -> None:
        """Print where training resumes, and whether its weights will be those of an undisturbed training."""
        conditions = self.trainer.conditions()
        reasons = loaded.conditions.differences(conditions)
        if not conditions.deterministic:
            reasons.append("without training.deterministic GPUs add in no fixed order")
        exact = f"not be bit-identical to an undisturbed run's: {'; '.join(reasons)}" if reasons else "be bit-identical"
        print(
            f"resuming after update {loaded.update:,} of {self.settings.updates:,}; the weights will {exact}",
            flush=True,
        )

    def train(self, valid: Corpus, last_update: int) -> bool:
        """Train until `last_update`, or as long as `patience` allows; return False if a rank was asked to stop."""
        trainer, settings, first = self.trainer, self.settings, self.trainer.update
        # A kill may have come before done.json, or the setting is new.
        last_update = trainer.update if self.out_of_patience() else last_update
        for update in ahead(trainer.updates(self.corpus, last_update)):
            with arithmetic(settings.arithmetic):
                trainer.step(update)
            last = update.number == settings.updates
            if update.number % settings.validate_every == 0 or last:
                self.validate(valid)
            reported = update.number % self.report_every == 0 or last
            if reported:
                interval = trainer.measured.take_interval()
                self.log(history.interval_record(trainer.job, trainer.measured.state, interval))
            if chain.is_link(settings, update.number):
                self.add_link()
            if reported and time.monotonic() - self._saved > 60 * settings.resume_minutes:
                self.save()
            if self.out_of_patience():
                break
            if not last and trainer.any_stop_requested():
                trainer.measured.collect()
                self.save()
                return False
        trainer.measured.collect()
        if trainer.update == first or not chain.is_link(settings, trainer.update):
            self.add_link()
        self.save()
        if trainer.world.main:
            write_json(self.folder / "done.json", history.summary(trainer.job, trainer.measured.saved()))
        return True

    def validate(self, valid: Corpus) -> None:
        """Record the validation loss, translations for people to read, and those of the sample, for their scores."""
        trainer, settings = self.trainer, self.settings
        with arithmetic(settings.arithmetic):
            loss = trainer.validate(valid)
            outputs = {"outputs": trainer.translate_examples(valid)} if trainer.world.main else {}
            sample = trainer.translate_sample(valid) if settings.validation_sample else {}
        if settings.validation_sample:  # Portable arithmetic has no operations that send objects.
            outputs["sample"] = dict(sorted(pair for part in trainer.world.gather(sample) for pair in part.items()))
        trainer.measured.state.valid_loss = loss
        # Validations at the end of a run do not count for `patience`: the run may be extended.
        if trainer.update % settings.validate_every == 0:
            trainer.measured.add_validation(loss)
        self.log({"valid_loss": loss, "valid_ppl": history.perplexity(loss)})
        self.log(outputs)

    def out_of_patience(self) -> bool:
        patience, waited = self.settings.patience, self.trainer.measured.state.validations_since_best
        if patience is None or waited < patience:
            return False
        if self.trainer.world.main:
            update = self.trainer.update
            print(f"training ends after update {update:,}: {waited:,} validations were no better", flush=True)
        return True

    def log(self, values: Mapping[str, Any]) -> None:
        """Append a record of the last update to the history on the main rank."""
        if self.trainer.world.main:
            times = {"update": self.trainer.update, "seconds": self.trainer.measured.seconds()}
            history.append(self.folder / HISTORY, {**times, **values})

    def keeps(self, update: int) -> bool:
        return self.keep_every is not None and update % self.keep_every == 0 and update < self.settings.updates

    def add_link(self) -> None:
        """Append a link to the chain of hashes on the main rank; keep the state every `keep_every` updates.

        A thread does so while training continues. It also writes the checkpoint, which always has a link.
        """
        trainer, update = self.trainer, self.trainer.update
        if self.keeps(update):
            trainer.measured.collect()  # A saved state has the sums of an unfinished interval, from every rank.
        if not trainer.world.main:
            return
        self._link.result()  # Raises the error that prevented it.
        copies = chain.host_copies(trainer.model, trainer.optimizer)
        # On 8 GPUs, hashing the 757 MB of base while all wait would take several percent of the time.
        self._link = self.writing.submit(self._write_link, update, copies, trainer.conditions())
        if self.keeps(update):
            self.save()

    def _write_link(self, update: int, copies: Sequence[Mapping[str, Tensor]], conditions: ResumeConditions) -> None:
        """Write the checkpoint and the link after `update`, of copies of weights and moments."""
        if update % self.settings.checkpoint_every == 0:
            folder = self.folder / "checkpoints"
            checkpoint.save_checkpoint(folder, update, copies[0], self.settings.keep_checkpoints)
        chain.add_link(self.folder, self.settings, update, copies, conditions)

    def save(self) -> None:
        """Save the state on the main rank, which alone decides when. Every rank must have called `collect` before."""
        self._saved = time.monotonic()
        trainer = self.trainer
        if trainer.world.main:
            self._link.result()
            # Flush the logs before saving: a resumed training does not rewrite records before the saved update.
            for name in (HISTORY, CHAIN):
                if (self.folder / name).exists():
                    flush(self.folder / name)
            saved = trainer.measured.saved()
            state.save_state(self.folder, saved, trainer.model, trainer.optimizer, self.keeps)


def train(job: Job, folder: Path, world: World) -> bool:
    """Train until the last update, resuming from the state in `folder`; return False if asked to stop before."""
    corpus = Corpus(train_files(Path(job.corpus)))
    valid = Corpus([Path(job.corpus) / "valid.arrow"])
    for name, pairs in (("training", corpus), ("validation", valid)):
        if job.model.positions == "learned" and pairs.longest > job.model.max_positions:
            raise InputError(
                f"a sentence of the {name} set has {pairs.longest:,} subwords, but model.max_positions is "
                f"{job.model.max_positions:,}: raise that, or shorten the sentence"
            )
    saved, damaged = newest_whole(folder)
    if saved is None and damaged:
        raise InputError(
            f"no saved state in {folder} has the hashes with which it was saved: copy what you need of checkpoints/, "
            "then remove that folder to start this training again"
        )
    with arithmetic(job.training.arithmetic):
        trainer = Trainer(job, world)
    if job.training.start_from is not None and saved is None:
        state.load_weights(folder / state.START, trainer.model)
    attempt = Attempt(trainer, corpus, folder)
    attempt.resume(saved, damaged)
    earlier_end = folder / "last_update"
    last_update = int(earlier_end.read_text(encoding="utf-8")) if earlier_end.exists() else job.training.updates
    with stop_on_signals(attempt.trainer), attempt.writing:
        return attempt.train(valid, last_update)


def newest_whole(folder: Path) -> tuple[Path | None, list[Path]]:
    """Return the newest whole state, None without one; and those after it, which are damaged."""
    damaged = list[Path]()
    for path in reversed(checkpoint.states(folder)):
        if state.is_whole(path):
            return path, damaged
        damaged.append(path)
    return None, damaged


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
    """Make SIGTERM and SIGINT request a stop after the current update, if this is the main thread, which gets them."""

    def request_stop(signum: int, frame: FrameType | None) -> None:
        trainer.stop_requested = True

    numbers = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
    old = {number: signal.signal(number, request_stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def fail(folder: Path, error: Exception) -> NoReturn:
    """Write `failed.json` unless another process did or only lost its peers, and end this process at once.

    Ending in order would let NCCL wait for the other processes, which wait for this one. Where the failure cannot be
    written the status is UNRECORDED: a failure that nobody knows of is repeated.
    """
    status, state, reason = 1, "failed", f"{type(error).__name__}: {error}"
    disk = {"errno": error.errno, "file": error.filename} if isinstance(error, OSError) else {}
    if isinstance(error, InputError):
        state, reason = "refused", str(error)
        print(f"train: {error}", file=sys.stderr)
    elif disk.get("errno") not in FULL_DISK:
        traceback.print_exception(error)
    if not (peer_is_lost(error) or (folder / "failed.json").exists()):
        try:
            write_json(folder / "failed.json", {"state": state, "error": reason, **disk})
        except OSError as unwritten:
            print(f"train: {reason}; {folder / 'failed.json'} could not be written: {unwritten}", file=sys.stderr)
            status = UNRECORDED
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    """Run one of torchrun's workers on the job in the given folder; a second argument is the id of torchrun's process.

    torchrun turns every exit status into 1, so the outcome is a file. A worker that only lost its peers writes none.
    """
    # If torchrun is killed with SIGKILL, its workers would otherwise live on and occupy the devices. It may have been
    # killed already, while this one was importing.
    die_with_parent(signal.SIGKILL, *map(int, sys.argv[2:]))
    folder = Path(sys.argv[1])
    job = Job.model_validate(read_yaml(folder / "job.yaml"))
    torch.set_flush_denormal(job.training.arithmetic == "ordinary")
    try:
        with sharing(folder / TRAINERS), join_world(job.training.shards) as world:
            finished = stand_by(folder, world) if world.rank >= world.size else train(job, folder, world)
            # On several nodes torchrun also stops its workers where a node joins, to start them again with it.
            if not finished and world.main and os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") == "0":
                (folder / "interrupted").touch()
    except Exception as error:
        fail(folder, error)
    if not finished:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
