"""What uploading states costs: python -m tests.bench.state_store

For states of three sizes (a tiny model, row `small`, row `base`): seconds and processor time to upload a state to an S3
server on this machine, first with all that belongs to it, then as the next state, whose checkpoints are there already;
and their share of the time between two states. The server's processor time is not counted: elsewhere it is another
machine.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from pipeline.trainings.sync import StateStore
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
    states, result = StateStore(url, "0123-4567"), {}
    for update in range(1, CHECKPOINTS):
        save(folder, update, parameters)
    for update, name in ((CHECKPOINTS, "first"), (CHECKPOINTS + 1, "next")):
        save(folder, update, parameters)
        started, cpu = time.perf_counter(), time.process_time()
        assert states.push(folder) == update
        result[f"{name}_seconds"] = time.perf_counter() - started
        result[f"{name}_cpu_seconds"] = time.process_time() - cpu
    result["state_megabytes"] = 12e-6 * parameters
    result["cpu_share"] = result["next_cpu_seconds"] / (60 * minutes)
    return result


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.state_store", description=__doc__)
    parser.parse_args()
    announce(parser.prog)
    result = {**conditions()}
    with tempfile.TemporaryDirectory(prefix="states-") as scratch, rclone(Path(scratch) / "buckets") as store:
        os.environ |= store
        for name, parameters in PARAMETERS.items():
            folder = Path(scratch) / name / "0123-4567"
            result[name] = uploads(folder, parameters, MINUTES[name], f"s3://{BUCKET}/{name}")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
