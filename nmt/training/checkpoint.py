"""Weights on disk: model folders, checkpoints for resuming, and the average of the last n (section 6.1).

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
import yaml
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from nmt.common.files import writing
from nmt.config import InputError, ModelSettings, SearchSettings, Settings, TokenizerSettings
from nmt.model import Transformer

WEIGHTS = "model.safetensors"


class ModelDescription(Settings):
    """`config.yaml` of a model folder: all that translating needs besides weights and subwords."""

    source: str
    target: str
    vocabulary: int
    tokenizer: TokenizerSettings
    model: ModelSettings
    search: SearchSettings
    origin: dict[str, str | int]
    """Which run made it, for people."""


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors to a safetensors file; raises OSError where the disk is full."""
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        raise OSError(f"{path} could not be written: {error}") from error


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; raises InputError where it is missing or damaged."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} cannot be read as weights ({error}): make it again") from error


# Model folders.


def save_model(folder: Path, weights: Mapping[str, Tensor], description: ModelDescription, subwords: Path) -> None:
    """Write a model folder that is complete in itself: weights, config.yaml and the subword folder."""
    with writing(folder) as temporary:
        temporary.mkdir()
        save_tensors(temporary / WEIGHTS, weights)
        config = yaml.safe_dump(description.model_dump(), sort_keys=False, allow_unicode=True)
        (temporary / "config.yaml").write_text(config, encoding="utf-8")
        shutil.copytree(subwords, temporary / "subwords")


def load_description(folder: Path) -> ModelDescription:
    """A model folder's config.yaml; raises InputError where there is none or it is wrong."""
    path = folder / "config.yaml"
    try:
        return ModelDescription.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"{folder} is no model folder: {path} cannot be read ({error.strerror})") from error
    except (ValidationError, yaml.YAMLError) as error:
        raise InputError(f"{path} is damaged or of another version: {error}") from error


def load_model(folder: Path, description: ModelDescription) -> Transformer:
    """The model of a folder, for evaluation; raises InputError where weights are damaged, of another shape or NaN."""
    weights = load_tensors(folder / WEIGHTS)
    with torch.device("meta"):
        wanted = {
            name: tensor.shape
            for name, tensor in Transformer(description.model, description.vocabulary).state_dict().items()
        }
    for name in sorted(wanted.keys() | weights.keys()):
        found = weights[name].shape if name in weights else None
        if found != wanted.get(name):
            raise InputError(
                f"{folder / WEIGHTS}: tensor `{name}` has shape {_shape(found)}, but config.yaml asks for "
                f"{_shape(wanted.get(name))}: the two files are of different models"
            )
    for name, tensor in weights.items():
        if not torch.isfinite(tensor).all():
            raise InputError(f"{folder / WEIGHTS}: tensor `{name}` holds values that are not finite: train it again")
    model = Transformer(description.model, description.vocabulary)
    model.load_state_dict(weights)
    return model.eval()


def _shape(shape: Sequence[int] | None) -> str:
    return "none" if shape is None else str(list(shape))


# Checkpoints of a training in progress.


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
                        f"{path}: tensor `{name}` has shape {_shape(tensor.shape)}, in {paths[0]} "
                        f"{_shape(like.shape)}: average checkpoints of one training"
                    )
                sums[name] = sums.get(name, torch.zeros_like(tensor, dtype=torch.float64)) + tensor
    return {name: (total / len(paths)).to(first[name].dtype) for name, total in sums.items()}
