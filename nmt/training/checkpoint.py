"""Checkpoints on disk: the paths of saved states, and weights for averaging (section 6.1).

Weights are safetensors files. A file or folder appears under its name when it is complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from nmt.common.files import writing
from nmt.common.tensors import load_tensors, save_tensors


def checkpoint_path(folder: Path, update: int) -> Path:
    return folder / f"update-{update:08d}.safetensors"


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints for averaging, oldest first."""
    return sorted(folder.glob("update-*.safetensors"))


def update_of(path: Path) -> int:
    """Return the update in the name of a checkpoint or state, as update-00001500."""
    return int(path.stem.removeprefix("update-"))


def save_checkpoint(folder: Path, update: int, weights: Mapping[str, Tensor], keep: int) -> None:
    """Save the weights after `update`, then remove all checkpoints but the newest `keep`."""
    with writing(checkpoint_path(folder, update)) as temporary:
        save_tensors(temporary, weights)
    for old in checkpoints(folder)[:-keep]:
        old.unlink()


def states(folder: Path) -> list[Path]:
    """Return the folders of the saved states of the training in `folder`, oldest first."""
    return sorted((folder / "resume").glob("update-" + "[0-9]" * 8))


def latest_resume(folder: Path) -> Path | None:
    """Return the folder of the newest saved state of the training in `folder`, or None."""
    return max(states(folder), default=None)


def last_saved_update(folder: Path) -> int:
    """Return the update of the newest saved state of the training in `folder`, or 0."""
    newest = latest_resume(folder)
    return update_of(newest) if newest else 0


def average(paths: Sequence[Path]) -> dict[str, Tensor]:
    """Return the mean of the weights of a training's checkpoints, summed in float64, in their own dtype."""
    first = load_tensors(paths[0])
    sums = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in first.items()}
    for path in paths:
        for name, tensor in load_tensors(path).items():
            sums[name] += tensor
    return {name: (total / len(paths)).to(first[name].dtype) for name, total in sums.items()}
