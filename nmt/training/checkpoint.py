"""Checkpoints of a training: states to resume from, and the average of the last n (section 6.1).

All are safetensors, and each appears whole or not at all.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from nmt.common.files import writing
from nmt.common.tensors import WEIGHTS, load_tensors, save_tensors, shape_text
from nmt.config import InputError
from nmt.model import Transformer


def checkpoint_path(folder: Path, update: int) -> Path:
    """Where the weights after `update` stand, for averaging."""
    return folder / f"update-{update:08d}.safetensors"


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints for averaging, oldest first."""
    return sorted(folder.glob("update-*.safetensors"))


def update_of(path: Path) -> int:
    """The update that a checkpoint's name tells."""
    found = re.fullmatch(r"update-(\d+)(\.safetensors)?", path.name)
    if found is None:
        raise InputError(f"{path} is not a checkpoint's name: those read update-00001500")
    return int(found[1])


def save_checkpoint(folder: Path, update: int, model: Transformer, keep: int) -> None:
    """Add the weights after `update`, then remove all but the newest `keep`."""
    with writing(checkpoint_path(folder, update)) as temporary:
        save_tensors(temporary, model.state_dict())
    for old in checkpoints(folder)[:-keep]:
        old.unlink()


def save_resume(
    folder: Path, update: int, model: Transformer, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
) -> None:
    """Save what training resumes from after `update`; states of other updates are removed once it is whole.

    A state that is there already is never written again: at no moment is the newest one without its name.
    """
    moments = {
        f"{key}.{name}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }
    path = folder / f"update-{update:08d}"
    if not path.exists():
        with writing(path) as temporary:
            temporary.mkdir()
            save_tensors(temporary / WEIGHTS, model.state_dict())
            save_tensors(temporary / "optimizer.safetensors", moments)
            (temporary / "state.json").write_text(json.dumps({**state, "update": update}, indent=2), encoding="utf-8")
    for other in (*folder.glob("update-*"), *folder.glob(".update-*")):
        if other != path:
            shutil.rmtree(other)


def _resumable(folder: Path) -> dict[int, Path]:
    """States to resume from by their update. All but the newest may be partly removed."""
    named, aside = (
        {int(match[1]): path for path in folder.glob("*") if (match := re.fullmatch(name, path.name))}
        # Earlier versions rewrote states by two renames: a kill between them left the state under the second name.
        for name in (r"update-(\d+)", r"\.update-(\d+)\..+\.old")
    )
    return {**aside, **named}


def latest_resume(folder: Path) -> Path | None:
    """The newest state to resume from."""
    states = _resumable(folder)
    return states[max(states)] if states else None


def trained(folder: Path) -> int:
    """The update that the training in `folder` would go on after."""
    return max(_resumable(folder / "resume"), default=0)


def load_resume(path: Path, model: Transformer, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Put weights and optimizer state back in place; returns what `save_resume` was given as `state`."""
    model.load_state_dict(load_tensors(path / WEIGHTS))
    moments = load_tensors(path / "optimizer.safetensors")
    for name, parameter in model.named_parameters():
        optimizer.state[parameter] = {
            # Adam counts its steps on the CPU unless it is fused, then beside the parameter.
            key: moments[f"{key}.{name}"].to(parameter.device)
            for key in ("step", "exp_avg", "exp_avg_sq")
        }
    state: dict[str, Any] = json.loads((path / "state.json").read_text(encoding="utf-8"))
    return state


def average(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of checkpoints' weights, summed in float64, returned in their own precision.

    Raises InputError where there is none, one is given twice, or names or shapes differ.
    """
    if not paths:
        raise InputError("there is no checkpoint to average: train at least training.checkpoint_every updates")
    if len({path.resolve() for path in paths}) < len(paths):
        raise InputError(f"a checkpoint is given twice: {', '.join(path.name for path in paths)}; give each once")
    sums: dict[str, Tensor] = {}
    first = load_tensors(paths[0])
    for path in paths:
        with safe_open(path, framework="pt") as file:
            if set(file.keys()) != set(first):
                raise InputError(f"{path} and {paths[0]} hold different tensors: average checkpoints of one training")
            for name, like in first.items():
                tensor = file.get_tensor(name)
                if tensor.shape != like.shape:
                    raise InputError(
                        f"{path}: tensor `{name}` has shape {shape_text(tensor.shape)}, in {paths[0]} "
                        f"{shape_text(like.shape)}: average checkpoints of one training"
                    )
                sums[name] = sums.get(name, torch.zeros_like(tensor, dtype=torch.float64)) + tensor
    return {name: (total / len(paths)).to(first[name].dtype) for name, total in sums.items()}
