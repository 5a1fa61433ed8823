"""What a training logs in its folder: a record per interval, two per validation (losses; translations), a summary."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from nmt import flops, hardware
from nmt.common.files import write_text
from nmt.training.schedule import learning_rate
from nmt.training.settings import Job
from nmt.training.state import Interval, TrainState

Record = dict[str, int | float]

HISTORY, CHAIN = "history.jsonl", "chain.jsonl"  # the files of the history, and of the chain of hashes (chain.py)


def interval_record(job: Job, state: TrainState, interval: Interval) -> Record:
    """Return the means of an interval that ends with `state`, its speed, and the learning rate of its last update.

    Loss and negative log-likelihood are per target token, in nats; the interval has at least one update.
    """
    tokens, device = interval.sums.target, state.conditions.device
    done = float(job.training.passes * flops.training_flops(job.model, job.output_rows, interval.sums))
    values: Record = {
        "loss": interval.loss / tokens,
        "nll": interval.nll / tokens,
        "gradient_norm": interval.norm / max(1, interval.updates - interval.skipped),
        "tokens": float(tokens),
        "ppl": perplexity(interval.nll / tokens),
        "learning_rate": learning_rate(state.update, job.model.d_model, job.training),
        "tokens_per_second": tokens / interval.seconds,
        "flops_per_second": done / interval.seconds,
    }
    known = hardware.data_sheet(device)
    if known is not None and (peak := known.peak(job.training.precision)) is not None:
        devices = hardware.devices(device, state.processes)
        values["utilisation"] = done / (interval.seconds * devices * peak)
    return {**values, "padding": state.padding, "skipped": interval.skipped}


def summary(job: Job, state: TrainState) -> dict[str, Any]:
    """Return what `done.json` says of a finished training, over all attempts."""
    sums = state.sums
    return {
        "updates": state.update,
        "params": flops.parameters(job.model, job.vocabulary, job.target_vocabulary),
        "vocabulary": job.vocabulary,
        "train_seconds": state.seconds,
        "device_seconds": state.device_seconds,
        "processes": state.processes,
        "threads": state.conditions.threads,
        "device": state.conditions.device,
        "precision": job.training.precision,
        "pairs": sums.pairs,
        "source_tokens": sums.source,
        "target_tokens": sums.target,
        "tokens_per_second": sums.target / state.seconds,
        "padding": state.padding,
        "valid_loss": state.valid_loss,
        "valid_ppl": perplexity(state.valid_loss),
        "flops_counted": float(job.training.passes * flops.training_flops(job.model, job.output_rows, sums)),
        "resumes": state.resumes,
    }


def perplexity(loss: float) -> float:
    """Return the perplexity of a mean negative log-likelihood in nats, limited so that it does not overflow."""
    return float(Decimal(min(loss, 99.0)).exp())  # The last digit of math.exp depends on the C library.


class HistoryReader:
    """A file of JSON lines that another process appends to."""

    def __init__(self, path: Path) -> None:
        self.path, self._inode = path, 0
        self.position = 0  # bytes read so far

    def new(self) -> list[Record]:
        """Return the records since the last call. A resumed training replaces the file: then all records are new.

        Stops at the first line that cannot be read: a kill may cut the last line short, and a power failure leave
        anything after the last flush.
        """
        if not self.path.exists():
            return []
        records: list[Record] = []
        with self.path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_ino != self._inode or status.st_size < self.position:
                self._inode, self.position = status.st_ino, 0
            file.seek(self.position)
            while (line := file.readline()).endswith(b"\n"):
                try:
                    records.append(json.loads(line))
                except ValueError:
                    break
                self.position += len(line)
        return records


def read_history(path: Path) -> list[Record]:
    """Return the records of a file of JSON lines up to the first line that cannot be read; none without the file."""
    return HistoryReader(path).new()


def append(path: Path, record: Mapping[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def remove_after(folder: Path, update: int) -> None:
    """Remove the records of updates after `update`: a training that resumes there measures them again."""
    for path in (folder / HISTORY, folder / CHAIN):
        if path.exists():
            remaining = [record for record in read_history(path) if record["update"] <= update]
            write_text(path, "".join(json.dumps(record) + "\n" for record in remaining))
