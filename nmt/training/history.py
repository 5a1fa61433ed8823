"""What a training leaves behind in its folder: a history, the state to resume from, and a summary at the end."""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from nmt import flops
from nmt.common.files import writing
from nmt.config import InputError
from nmt.flops import LengthSums
from nmt.schedule import learning_rate
from nmt.training import checkpoint, micro_batch_size
from nmt.training.batches import Corpus, pairs_of

if TYPE_CHECKING:
    from nmt.training.trainer import Trainer


DIVERGED = 100
"""Consecutive updates without a finite gradient after which a training is ended."""


class Log:
    """What a training leaves behind: history, resumable state and the final summary, written by the main rank."""

    def __init__(self, folder: Path, trainer: Trainer, corpus: Corpus) -> None:
        self.folder, self.trainer, self.corpus = folder, trainer, corpus
        self.history, self.skips = folder / "history.jsonl", folder / "skipped.jsonl"
        self.total = trainer.settings.updates
        self.every = max(1, min(100, self.total // 100))
        self.before = 0.0
        """Seconds that earlier attempts took, those lost to a kill included."""
        self.device_seconds: dict[str, float] = {}
        """The same times the devices that each attempt had, by their name: a training may move."""
        self.started = self.saved = self.shown = time.monotonic()
        self.micro_tokens = trainer.micro_tokens
        self.padded = 0.0
        self.counted = 0
        """Operations up to the last record, as nmt.flops counts them."""
        self.best = self.valid = float("inf")
        self.worse = 0
        self.resumes = 0
        self.interval_skipped = 0
        """Updates since the last record whose gradient was not finite."""
        self.last_finite = self.checked = 0
        """The last update with a finite gradient, and the last one whose gradient was looked at."""

    def seconds(self) -> float:
        """Training time so far, over all attempts."""
        return self.before + time.monotonic() - self.started

    def all_device_seconds(self) -> dict[str, float]:
        """Training time so far times devices, by the devices' name."""
        name = micro_batch_size.device_name(self.trainer.world.device)
        own = (self.seconds() - self.before) * flops.devices(name, self.trainer.world.size)
        return {**self.device_seconds, name: self.device_seconds.get(name, 0.0) + own}

    def resume(self) -> None:
        """Put the newest saved state in place and forget what was measured after it."""
        records = read_history(self.history)
        path = checkpoint.latest_resume(self.folder / "resume")
        if path is None:
            state: dict[str, Any] = {"update": 0, "seconds": 0.0, "device_seconds": {}, "setting": self.setting()}
        else:
            state = checkpoint.load_resume(path, self.trainer.model, self.trainer.optimizer)
            self.trainer.sums = LengthSums(**state["sums"])
            self.padded, self.best, self.valid = state["padded"], state["best"], state["valid"]
            self.worse, self.resumes = state["worse"], state["resumes"] + 1
            # States of earlier versions hold neither.
            self.interval_skipped = state.get("interval_skipped", 0)
            self.last_finite = state.get("last_finite", state["update"])
            self.trainer.interval_updates = state["interval_updates"]
            self.trainer.interval_tokens = state["interval_tokens"]
            self.shown -= state["interval_seconds"]
            if self.trainer.world.main:
                self.trainer.interval.copy_(torch.tensor(state["interval"], dtype=torch.float64))
        self.before = max([state["seconds"], *(record["seconds"] for record in records)])
        # What was lost to a kill, on the devices that saved the state.
        name, lost = state["setting"]["device"], self.before - state["seconds"]
        spent = state["device_seconds"].get(name, 0.0) + lost * flops.devices(name, state["setting"]["processes"])
        self.device_seconds = {**state["device_seconds"], name: spent}
        self.trainer.update = self.checked = state["update"]
        self._check_the_others()
        self.counted = flops.training_flops(self.trainer.job.model, self.trainer.job.vocabulary, self.trainer.sums)
        self.trainer.world.barrier()
        if not self.trainer.world.main:
            return
        # All are here again: what one of them failed of before is mended.
        (self.folder / "failed.json").unlink(missing_ok=True)
        if path is None:
            self._set_aside()
            return
        self._forget_later()
        same = state["setting"] == self.setting()
        exact = same and self.trainer.world.device.type == "cpu"
        print(
            f"resuming after update {self.trainer.update:,} of {self.total:,}; "
            + ("" if exact else "not ")
            + "bit-identical to an undisturbed run: processes, threads, micro-batch and device are "
            + ("the same" if same else f"not those it was saved on, {state['setting']}")
            + (", but GPUs add in no fixed order" if same and not exact else ""),
            flush=True,
        )

    def _set_aside(self) -> None:
        """Move what earlier attempts measured and saved into a folder of its own: no state continues it."""
        files = (self.history, self.skips, *checkpoint.checkpoints(self.folder / "checkpoints"))
        left = [path for path in files if path.exists() and path.stat().st_size > 0]
        if not left:
            return
        names = (self.folder / f"earlier-{number}" for number in itertools.count(1))
        aside = next(path for path in names if not path.exists())
        aside.mkdir()
        for path in left:
            os.replace(path, aside / path.name)
        print(
            f"no saved state is in {self.folder / 'resume'}: training starts at update 1, and what was measured and "
            f"saved before is moved to {aside}",
            flush=True,
        )

    def _forget_later(self) -> None:
        """Remove what was measured and saved after the update that training resumes from: it will be again."""
        for later in checkpoint.checkpoints(self.folder / "checkpoints"):
            if checkpoint.update_of(later) > self.trainer.update:
                later.unlink()
        for path in (self.history, self.skips):
            if path.exists():
                kept = [record for record in read_history(path) if record["update"] <= self.trainer.update]
                with writing(path) as temporary:
                    temporary.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")

    def _check_the_others(self) -> None:
        """Raise an error where ranks, on machines whose folders differ, would train on different text or weights.

        Every id and every weight is read once; beside the training that follows, that takes no time.
        """
        trainer, world = self.trainer, self.trainer.world
        if world.size == 1:
            return
        if not world.same(self.corpus.checksum()):
            raise InputError(
                f"the machines' corpora differ: have {trainer.job.corpus} be the same folder on all of them"
            )
        if not world.same(trainer.update):
            # Network file systems show new files late: a restart finds them.
            raise RuntimeError(f"this rank would go on after update {trainer.update:,}, another after another")
        if not world.same(trainer.weights_checksum()):
            raise InputError(
                f"the ranks' weights after update {trainer.update:,} differ: give all machines the same settings, "
                "the same version of torch and the same state folder, then start the training again"
            )

    def setting(self) -> dict[str, Any]:
        """What must be the same for a resumed run to be bit-identical."""
        device = self.trainer.world.device
        return {
            "processes": self.trainer.world.size,
            "threads": torch.get_num_threads() if device.type == "cpu" else 0,
            "micro_tokens": self.trainer.micro_tokens,
            "device": micro_batch_size.device_name(device),
            "compiled": self.trainer.compiled,
            "torch": torch.__version__,
        }

    def _append(self, record: dict[str, int | float]) -> None:
        if self.trainer.world.main:
            with self.history.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")

    def validation(self, loss: float) -> None:
        """Record a validation."""
        self.valid = loss
        self.worse = 0 if loss < self.best else self.worse + 1
        self.best = min(self.best, loss)
        record = {"valid_loss": loss, "valid_ppl": perplexity(loss)}
        self._append({"update": self.trainer.update, "seconds": self.seconds(), **record})

    def patience_ended(self) -> bool:
        """Whether the configured number of validations went by without a better perplexity."""
        patience = self.trainer.settings.patience
        return patience is not None and self.worse >= patience

    def interval(self, last: bool) -> None:
        """Record the means of an interval, tell progress, and save the state when its minutes have passed."""
        trainer = self.trainer
        if not last and trainer.update % self.every != 0:
            return
        trainer.micro_tokens = trainer.world.minimum(trainer.micro_tokens)
        if trainer.world.main and trainer.micro_tokens < self.micro_tokens:
            micro_batch_size.remember(
                self.folder, micro_batch_size.device_name(trainer.world.device), trainer.micro_tokens
            )
        self.micro_tokens = trainer.micro_tokens
        self._tell(self._check_gradients())
        values = trainer.report()
        self.padded += values.pop("padded")
        now = time.monotonic()
        seconds = now - self.shown
        self.shown = now
        values["ppl"] = perplexity(values["nll"])
        values["learning_rate"] = learning_rate(trainer.update, trainer.job.model.d_model, trainer.settings)
        values["tokens_per_second"] = values["tokens"] / seconds
        values |= self._work(seconds)
        values["padding"] = 1 - (trainer.sums.source + trainer.sums.target) / max(1.0, self.padded)
        self._append({"update": trainer.update, "seconds": self.seconds(), **values, "skipped": self.interval_skipped})
        self.interval_skipped = 0
        if now - self.saved > 60 * trainer.settings.resume_minutes:
            self.save()

    def _check_gradients(self) -> list[int]:
        """Return the updates since the last call that changed no weight; InputError where DIVERGED in a row did not."""
        skipped, update = self.trainer.skipped(), self.trainer.update
        finite = set(range(self.checked + 1, update + 1)) - set(skipped)
        self.last_finite = max(finite, default=self.last_finite)
        self.checked = update
        self.interval_skipped += len(skipped)
        if update - self.last_finite >= DIVERGED:
            raise InputError(
                f"the gradients of the {update - self.last_finite:,} updates up to {update:,} were not finite: the "
                "training has diverged; lower training.learning_rate_scale, or raise training.warmup_steps"
            )
        return skipped

    def _tell(self, skipped: list[int]) -> None:
        """Say on which lines updates changed no weight."""
        settings = self.trainer.settings
        told = pairs_of(self.corpus, settings.seed, settings.tokens, skipped if self.trainer.world.main else ())
        for number, pairs in told:
            lines = sorted(self.corpus.line(int(pair)) for pair in pairs)
            with self.skips.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"update": number, "lines": lines}) + "\n")
            print(
                f"update {number:,}: the gradient was not finite and changed no weight; the lines of its "
                f"{len(lines):,} pairs in data/tokenized are in {file.name}",
                file=sys.stderr, flush=True,
            )  # fmt: skip

    def stop(self) -> None:
        """Save the state between two reports, with what was measured since the last: every rank takes part."""
        trainer = self.trainer
        trainer.world.sum(trainer.interval)
        skipped = self._check_gradients()
        self.save()
        self._tell(skipped)

    def _work(self, seconds: float) -> dict[str, float]:
        """Operations a second since the last record, and their share of the devices' peak where that is on record."""
        trainer, before = self.trainer, self.counted
        self.counted = flops.training_flops(trainer.job.model, trainer.job.vocabulary, trainer.sums)
        done = float(self.counted - before)
        name = micro_batch_size.device_name(trainer.world.device)
        known = flops.hardware(name)
        peak = None if known is None else known.peak(trainer.settings.precision)
        if peak is None:
            return {"flops_per_second": done / seconds}
        devices = flops.devices(name, trainer.world.size)
        return {
            "flops_per_second": done / seconds, "utilisation": flops.utilisation(done, seconds, devices, peak),
        }  # fmt: skip

    def save(self) -> None:
        """Write the state to resume from. The others need not wait: by the clock, ranks do not agree when."""
        self.saved = time.monotonic()
        if self.trainer.world.main:
            state = {
                "sums": asdict(self.trainer.sums), "padded": self.padded, "best": self.best, "valid": self.valid,
                "worse": self.worse, "resumes": self.resumes, "setting": self.setting(),
                "interval": self.trainer.interval.tolist(), "interval_updates": self.trainer.interval_updates,
                "interval_tokens": self.trainer.interval_tokens, "seconds": self.seconds(),
                "device_seconds": self.all_device_seconds(), "interval_seconds": self.saved - self.shown,
                "interval_skipped": self.interval_skipped, "last_finite": self.last_finite,
            }  # fmt: skip
            checkpoint.save_resume(
                self.folder / "resume", self.trainer.update, self.trainer.model, self.trainer.optimizer, state
            )

    def finish(self) -> None:
        """Save the state, so that a finished run can be extended, and the summary of all attempts."""
        self.save()
        trainer = self.trainer
        if not trainer.world.main:
            return
        job, sums = trainer.job, trainer.sums
        counted = flops.training_flops(job.model, job.vocabulary, sums)
        summary = {
            "updates": trainer.update,
            "params": sum(parameter.numel() for parameter in trainer.parameters),
            "vocabulary": job.vocabulary,
            "train_seconds": self.seconds(),
            "device_seconds": self.all_device_seconds(),
            "processes": trainer.world.size,
            "threads": torch.get_num_threads(),
            "device": micro_batch_size.device_name(trainer.world.device),
            "precision": trainer.settings.precision,
            "pairs": sums.pairs,
            "source_tokens": sums.source,
            "target_tokens": sums.target,
            "tokens_per_second": sums.target / self.seconds(),
            "padding": 1 - (sums.source + sums.target) / max(1.0, self.padded),
            "loss_valid": self.valid,
            "ppl_valid": perplexity(self.valid),
            "flops_counted": float(counted),
            "resumes": self.resumes,
        }
        with writing(self.folder / "done.json") as temporary:
            temporary.write_text(json.dumps(summary, indent=2), encoding="utf-8")


def perplexity(loss: float) -> float:
    """That of a mean negative log-likelihood in nats a subword; held below what a float holds."""
    return math.exp(min(loss, 99.0))


def read_history(path: Path) -> list[dict[str, int | float]]:
    """The records of a history file; a last line that a kill cut short is left out."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].split("\n") if line]
