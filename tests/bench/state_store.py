"""What uploading states costs: python -m tests.bench.state_store

For states of three sizes (a tiny model, row `small`, row `base`): seconds and processor time to upload a state to an S3
server on this machine, first with all that belongs to it, then as the next state, whose checkpoints are there already;
and their share of the time between two states. Then short trainings of row `small` with and without a store, in turn:
seconds per update and processor time, with more states than the row saves; the share of the time at the row's own
interval follows from them. The server's processor time is not counted: elsewhere it is another machine. On the cores of
this machine it slows the training down, though.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from nmt.training import checkpoint
from nmt.training.history import read_history
from pipeline.training.bucket import Bucket
from pipeline.training.remote_states import RemoteStates
from tests.bench import training
from tests.bench.conditions import announce, conditions
from tests.stores import BUCKET, rclone

PARAMETERS = {"tiny": 200_000, "small": 9_000_000, "base": 63_000_000}
CHECKPOINTS = 5
MINUTES = {"tiny": 1.0, "small": 5.0, "base": 10.0}
"""Between two states: `training.resume_minutes` of the rows `sample`, `small` and `base`."""


def save(folder: Path, update: int, parameters: int) -> None:
    """Write a state and a checkpoint as training does, with random numbers."""
    random, state = np.random.default_rng(update), folder / f"resume/update-{update:08d}"
    for path, floats in (
        (state / "model.safetensors", parameters),
        (state / "optimizer.safetensors", 2 * parameters),
        (folder / f"checkpoints/update-{update:08d}.safetensors", parameters),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.bytes(4 * floats))
    (folder / "history.jsonl").write_text('{"update": 1}\n' * update)


def uploads(folder: Path, parameters: int, minutes: float, url: str) -> dict[str, float]:
    """Measure the first upload of a training, and the next one, `minutes` later."""
    states, result = RemoteStates(Bucket(url), "0123-4567"), {}
    for update in range(1, CHECKPOINTS):
        save(folder, update, parameters)
    for update, name in ((CHECKPOINTS, "first"), (CHECKPOINTS + 1, "next")):
        save(folder, update, parameters)
        started, cpu = time.perf_counter(), time.process_time()
        assert states.push(folder) == update
        states.prune()
        result[f"{name}_seconds"] = time.perf_counter() - started
        result[f"{name}_cpu_seconds"] = time.process_time() - cpu
    result["state_megabytes"] = 12e-6 * parameters
    result["cpu_share"] = result["next_cpu_seconds"] / (60 * minutes)
    return result


def cpu_seconds() -> float:
    """Processor time of this process and of its own that have ended."""
    used = [resource.getrusage(kind) for kind in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def trained(job: Mapping[str, Any], folder: Path, environment: Mapping[str, str]) -> dict[str, float]:
    """Train a job; return seconds, the seconds per update after the first tenth, and processor time."""
    from pipeline.training import mirror

    folder.mkdir(parents=True)
    (folder / "job.yaml").write_text(yaml.safe_dump(dict(job)))
    for name in ("WMT_STATE", "WMT_STATE_STORE"):
        os.environ.pop(name, None)
    os.environ |= environment
    cpu = cpu_seconds()
    mirror.train(folder, lambda: None)
    assert checkpoint.trained(folder) == job["training"]["updates"]
    records = [record for record in read_history(folder / "history.jsonl") if "loss" in record]
    first, last = records[len(records) // 10], records[-1]
    return {
        "seconds": float(last["seconds"]),
        "per_update": float((last["seconds"] - first["seconds"]) / (last["update"] - first["update"])),
        "cpu_seconds": cpu_seconds() - cpu,
    }


def shares(alone: list[dict[str, float]], mirrored: list[dict[str, float]], minutes: float) -> dict[str, Any]:
    """Return what the store costs, as a share of the training without it, each round against its own."""

    def mean(values: list[float]) -> list[float]:
        return [statistics.mean(values), statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else math.nan]

    rounds = list(zip(alone, mirrored, strict=True))
    # The last state is uploaded at the end, too.
    states = [each["seconds"] / (60 * minutes) + 1 for each in mirrored]
    extra = [(store["cpu_seconds"] - without["cpu_seconds"]) for without, store in rounds]
    slower = [store["per_update"] / without["per_update"] - 1 for without, store in rounds]
    usual = MINUTES["small"]
    return {
        "cpu_seconds_a_state": mean([spent / count for spent, count in zip(extra, states, strict=True)]),
        "cpu_share_at_the_rows_interval": mean(
            [spent / count / (60 * usual) for spent, count in zip(extra, states, strict=True)]
        ),
        "time_share_here": mean(slower),
        "time_share_at_the_rows_interval": mean([each * minutes / usual for each in slower]),
    }


def main() -> None:
    """Print the measurements; where two numbers stand together, the second one is the standard error."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.state_store", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="trainings with and without a store; 0: none")
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=0.25, help="between two states of these trainings")
    options = parser.parse_args()
    announce(parser.prog)
    result: dict[str, Any] = conditions()
    with tempfile.TemporaryDirectory(prefix="states-") as scratch, rclone(Path(scratch) / "buckets") as store:
        os.environ |= {**store.environment(), "WMT_PROCESSES": "1"}
        for name, parameters in PARAMETERS.items():
            result[name] = uploads(
                Path(scratch) / name / "0123-4567", parameters, MINUTES[name], f"s3://{BUCKET}/{name}"
            )
            print(name, json.dumps(result[name]), file=sys.stderr, flush=True)
        rounds: dict[str, list[dict[str, float]]] = {"alone": [], "mirrored": []}
        if options.rounds:
            row = argparse.Namespace(
                row="small", pair="en-de", updates=options.updates, precision="float32", tokens=2000, shards=None
            )
            vocabulary = training.prepare(row, Path(scratch) / "corpus")
            job = training.job(row, vocabulary, Path(scratch) / "corpus")
            job["training"]["resume_minutes"] = options.minutes
        for number in range(options.rounds):
            for kind, environment in (("alone", {}), ("mirrored", {"WMT_STATE": f"s3://{BUCKET}/{number}"})):
                rounds[kind].append(trained(job, Path(scratch) / f"{kind}-{number}/0123-4567", environment))
                print(kind, rounds[kind][-1], file=sys.stderr, flush=True)
        if options.rounds:
            result["trainings"] = rounds | shares(rounds["alone"], rounds["mirrored"], options.minutes)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
