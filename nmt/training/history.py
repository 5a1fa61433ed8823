"""What a training logs in its folder: one record per interval, one per validation, skipped updates, and a summary."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from nmt import flops
from nmt.common.files import writing
from nmt.config import InputError, Job
from nmt.schedule import learning_rate
from nmt.training.batches import Corpus, pairs_of_updates
from nmt.training.distributed import World, device_name
from nmt.training.measurements import Measurements
from nmt.training.state import Interval

CHAIN = "chain.jsonl"
"""The file of the chain of hashes (nmt/training/chain.py)."""


class History:
    """Appends to `history.jsonl` and `skipped.jsonl` on the main rank; does nothing on the others."""

    def __init__(self, folder: Path, job: Job, world: World) -> None:
        self.folder, self.job, self.world = folder, job, world
        self.records_path, self.skipped_path = folder / "history.jsonl", folder / "skipped.jsonl"
        self.paths = self.records_path, self.skipped_path, folder / CHAIN

    def last_seconds(self) -> float:
        """Return the training time at the latest record, 0 without one."""
        return max((float(record["seconds"]) for record in read_history(self.records_path)), default=0.0)

    def remove_after(self, update: int, reported: int) -> None:
        """Remove the records of later updates: a training that resumes after `update` measures them again.

        `reported`: the end of the last interval before it. Raises InputError where the record of that cannot be read.
        """
        records = read_history(self.records_path)
        unreadable = self.records_path.exists() and len(records) < self.records_path.read_bytes().count(b"\n")
        if unreadable and reported not in {0, *(record["update"] for record in records if "loss" in record)}:
            raise InputError(
                f"{self.records_path} was on disk up to update {reported:,}, but line {len(records) + 1:,} cannot be "
                f"read: mend that line, or remove {self.folder} to start this training again"
            )
        for path in self.paths:
            if path.exists():
                remaining = [record for record in read_history(path) if record["update"] <= update]
                with writing(path) as temporary:
                    temporary.write_text("".join(json.dumps(record) + "\n" for record in remaining), encoding="utf-8")

    def log_validation(self, measured: Measurements) -> None:
        """Append the last validation."""
        self._append(measured, {"valid_loss": measured.valid_loss, "valid_ppl": perplexity(measured.valid_loss)})

    def log_interval(self, measured: Measurements, interval: Interval) -> None:
        """Append the means of an interval, its speed, and the learning rate of its last update."""
        values = interval_means(interval)
        values["ppl"] = perplexity(values["nll"])
        values["learning_rate"] = learning_rate(measured.update, self.job.model.d_model, self.job.training)
        values["tokens_per_second"] = values["tokens"] / interval.seconds
        values |= self._speed(interval)
        values["padding"] = measured.padding()
        self._append(measured, {**values, "skipped": interval.skipped})

    def _append(self, measured: Measurements, values: dict[str, int | float]) -> None:
        if self.world.main:
            with self.records_path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"update": measured.update, "seconds": measured.seconds(), **values}) + "\n")

    def _speed(self, interval: Interval) -> dict[str, float]:
        """Return operations per second, and their share of the devices' peak if that is known."""
        done = float(flops.training_flops(self.job.model, self.job.output_rows, interval.sums))
        name = device_name(self.world.device)
        speed = {"flops_per_second": done / interval.seconds}
        known = flops.hardware(name)
        if known is not None and (peak := known.peak(self.job.training.precision)) is not None:
            devices = flops.devices(name, self.world.size)
            speed["utilisation"] = flops.utilisation(done, interval.seconds, devices, peak)
        return speed

    def log_skipped(self, corpus: Corpus, updates: Sequence[int]) -> None:
        """Record and print which lines were in the updates whose gradient was not finite."""
        settings = self.job.training
        for number, pairs in pairs_of_updates(
            corpus, settings.seed, settings.tokens, updates if self.world.main else ()
        ):
            lines = sorted(corpus.line(int(pair)) for pair in pairs)
            with self.skipped_path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"update": number, "lines": lines}) + "\n")
            message = (
                f"update {number:,}: the gradient was not finite and changed no weight; the line numbers of its "
                f"{len(lines):,} pairs in data/tokenized are in {file.name}"
            )
            print(message, file=sys.stderr, flush=True)

    def write_summary(self, measured: Measurements, parameters: int) -> None:
        """Write `done.json`, the summary of a finished training over all attempts.

        `parameters`: the model's number of parameters.
        """
        if not self.world.main:
            return
        job, sums = self.job, measured.sums
        summary = {
            "updates": measured.update,
            "params": parameters,
            "vocabulary": job.vocabulary,
            "train_seconds": measured.seconds(),
            "device_seconds": measured.device_seconds(),
            "processes": self.world.size,
            "threads": torch.get_num_threads(),
            "device": device_name(self.world.device),
            "precision": job.training.precision,
            "pairs": sums.pairs,
            "source_tokens": sums.source,
            "target_tokens": sums.target,
            "tokens_per_second": sums.target / measured.seconds(),
            "padding": measured.padding(),
            "loss_valid": measured.valid_loss,
            "ppl_valid": perplexity(measured.valid_loss),
            "flops_counted": float(flops.training_flops(job.model, job.output_rows, sums)),
            "resumes": measured.resumes,
        }
        with writing(self.folder / "done.json") as temporary:
            temporary.write_text(json.dumps(summary, indent=2), encoding="utf-8")


def record_failure(folder: Path, state: str, error: str) -> None:
    """Write `failed.json` with the state `refused` or `failed`, unless another process has written it first."""
    path = folder / "failed.json"
    if not path.exists():
        with writing(path) as temporary:
            temporary.write_text(json.dumps({"state": state, "error": error}), encoding="utf-8")


def interval_means(interval: Interval) -> dict[str, int | float]:
    """Return loss and negative log-likelihood per target token, the mean gradient norm, and the target tokens."""
    updates, tokens = max(1, interval.updates), max(1, interval.sums.target)
    means = {"loss": interval.loss / tokens, "nll": interval.nll / tokens}
    return {**means, "gradient_norm": interval.norm / updates, "tokens": float(tokens)}


def perplexity(loss: float) -> float:
    """Return the perplexity of a mean negative log-likelihood in nats, limited so that it does not overflow."""
    return math.exp(min(loss, 99.0))


def read_history(path: Path) -> list[dict[str, int | float]]:
    """Return the records of a history file up to the first line that cannot be read.

    A kill may cut the last line short, and a power failure leave anything after the last flush.
    """
    records: list[dict[str, int | float]] = []
    if path.exists():
        for line in path.read_bytes().split(b"\n")[:-1]:
            try:
                records.append(json.loads(line))
            except ValueError:
                break
    return records
