"""The folder of the model that a training starts from."""

import os
from pathlib import Path

from nmt.common.files import sha256_of
from nmt.errors import InputError
from nmt.training.settings import StartSettings
from pipeline.config.paths import AVERAGE

WEIGHTS = "model.safetensors"  # As in nmt.common.tensors, which imports torch.


def find(start: StartSettings) -> Path:
    """Return the parent's model folder; raise InputError without one, or where its weights are not `start.weights`."""
    # DVC's experiments run in a copy of the repository; files that git ignores are in the original.
    roots = (Path(), Path(os.environ.get("DVC_ROOT", ".")))
    folders = (root / start.folder / part for root in roots for part in (Path(), AVERAGE))
    folder = next((folder for folder in folders if (folder / WEIGHTS).is_file()), None)
    if folder is None:
        missing = f"training.start_from is {start.folder}, but neither it nor its {AVERAGE} holds {WEIGHTS}"
        raise InputError(f"{missing}: name the folder of a model or of a run")
    if start.weights is not None and (sha256 := sha256_of(folder / WEIGHTS)) != start.weights:
        found = f"{folder / WEIGHTS} has the sha256 {sha256}, not {start.weights}"
        raise InputError(f"{found}: restore it, or take it as it is with `dvc repro --force --single-item resolve`")
    return folder
