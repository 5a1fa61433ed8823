"""Whether passes can be recorded on a GPU, tried by a process of its own.

After a failed recording a process may be unable to train.

`python -m nmt.training.packed.rehearsal FOLDER DEVICE` records passes of the training in FOLDER and repeats them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import torch

from nmt.common.files import read_yaml
from nmt.common.processes import die_with_parent
from nmt.config import InputError, Job
from nmt.training.batches import Corpus, train_files
from nmt.training.distributed import World, device_name
from nmt.training.packed.recording import WARM_UP, CudaGraphs, Recorder, packing_requested
from nmt.training.step import Trainer

REHEARSED = "rehearsed"
"""A file in the training's folder: where recording worked."""
MOST_SECONDS = 480
"""Enough to compile the layers; less than the other ranks wait for this one."""
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


def recorder_for(folder: Path, device: torch.device) -> Recorder | None:
    """Return what records the passes of the training in a folder on a GPU.

    None if updates are not packed, or if recording does not work, which is printed.
    """
    if device.type != "cuda" or not packing_requested(device):
        return None
    return CudaGraphs() if recording_works(folder, device) else None


def recording_works(folder: Path, device: torch.device) -> bool:
    """Return whether another process can record the training in a folder; print why not.

    Success is remembered in the folder.
    """
    here, remembered = f"{device_name(device)}, torch {torch.__version__}", folder / REHEARSED
    if remembered.exists() and remembered.read_text(encoding="utf-8") == here:
        return True
    environment = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}
    command = [sys.executable, "-m", "nmt.training.packed.rehearsal", str(folder), str(device)]
    try:
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=MOST_SECONDS
        )
    except subprocess.TimeoutExpired:
        reason = f"a recording was not ready after {MOST_SECONDS} seconds"
    else:
        if result.returncode == 0:
            remembered.write_text(here, encoding="utf-8")
            return True
        reason = result.stderr.strip().split("\n")[-1] or f"exit status {result.returncode}"
    print(f"training continues without recordings, more slowly: {reason}", file=sys.stderr)
    return False


def rehearse(job: Job, device: torch.device, recorder: Recorder) -> None:
    """Train on two updates, the first until its pass is recorded and repeated; raise InputError if it is not."""
    trainer = Trainer(job, World(0, 1, device), recorder)
    updates = list(islice(trainer.updates(Corpus(train_files(Path(job.corpus))), 2), 2))
    for update in [*updates[:1] * (WARM_UP + 2), *updates[1:]]:
        trainer.step(update)
    trainer.measured.collect()
    if not trainer.recorded_shapes:
        raise InputError("nothing was recorded")


def main(recorder: Callable[[], Recorder] = CudaGraphs) -> None:
    """Rehearse the training in the given folder on the given device."""
    die_with_parent()
    folder, device = Path(sys.argv[1]), torch.device(sys.argv[2])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        rehearse(Job.model_validate(read_yaml(folder / "job.yaml")), device, recorder())
    except InputError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
