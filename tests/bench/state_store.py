"""What uploading states costs: python -m tests.bench.state_store

For states of three sizes (a tiny model, row `small`, row `base`): seconds and processor time to upload a state to an S3
server on this machine, first with all that belongs to it, then as the next state, whose checkpoints are there already;
and their share of the time between two states. Then short trainings with and without a store, in turn: seconds per
update. The server's processor time is not counted: elsewhere it is another machine.
"""

from __future__ import annotations

import argparse
import json
import os
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
from tests.bench.conditions import announce, conditions, spread
from tests.stores import BUCKET, rclone

PARAMETERS = {"tiny": 200_000, "small": 9_000_000, "base": 63_000_000}
CHECKPOINTS = 5
MINUTES = 10.0
"""Between two states: `training.resume_minutes` of every row of the paper."""


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


def uploads(folder: Path, parameters: int, url: str) -> dict[str, float]:
    """Measure the first upload of a training, and the next one."""
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
    result["cpu_share"] = result["next_cpu_seconds"] / (60 * MINUTES)
    return result


def trained(job: Mapping[str, Any], folder: Path, environment: Mapping[str, str]) -> float:
    """Train a job; return the seconds per update after the first tenth."""
    from pipeline.training import mirror

    folder.mkdir(parents=True)
    (folder / "job.yaml").write_text(yaml.safe_dump(dict(job)))
    for name in ("WMT_STATE", "WMT_STATE_STORE"):
        os.environ.pop(name, None)
    os.environ |= environment
    mirror.train(folder, lambda: None)
    assert checkpoint.trained(folder) == job["training"]["updates"]
    records = [record for record in read_history(folder / "history.jsonl") if "loss" in record]
    first, last = records[len(records) // 10], records[-1]
    return float((last["seconds"] - first["seconds"]) / (last["update"] - first["update"]))


def main() -> None:
    """Print the measurements."""
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
            result[name] = uploads(Path(scratch) / name / "0123-4567", parameters, f"s3://{BUCKET}/{name}")
            print(name, json.dumps(result[name]), file=sys.stderr, flush=True)
        rates: dict[str, list[float]] = {"alone": [], "mirrored": []}
        if options.rounds:
            row = argparse.Namespace(
                row="small", pair="en-de", updates=options.updates, precision="float32", tokens=2000
            )
            vocabulary = training.prepare(row, Path(scratch) / "corpus")
            job = training.job(row, vocabulary, Path(scratch) / "corpus")
            job["training"]["resume_minutes"] = options.minutes
        for number in range(options.rounds):
            for kind, environment in (("alone", {}), ("mirrored", {"WMT_STATE": f"s3://{BUCKET}/{number}"})):
                rates[kind].append(trained(job, Path(scratch) / f"{kind}-{number}/0123-4567", environment))
                print(kind, rates[kind][-1], file=sys.stderr, flush=True)
        if options.rounds:
            result["seconds_per_update"] = {kind: spread(values) for kind, values in rates.items()}
            result["ratio"] = statistics.median(rates["mirrored"]) / statistics.median(rates["alone"])
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
