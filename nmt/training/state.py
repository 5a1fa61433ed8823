"""The state that a training saves and resumes from: a schema, and its folder on disk.

A state is a folder `update-<number>` with weights, optimizer moments and `state.json`, which holds a TrainState;
`sha256.json` has the hashes of all three.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nmt import hardware
from nmt.common.files import sha256_of, write_json, writing
from nmt.common.tensors import WEIGHTS, load_tensors, save_tensors
from nmt.errors import InputError, explain
from nmt.flops import LengthSums
from nmt.model import Transformer
from nmt.training import checkpoint

MOMENTS = "optimizer.safetensors"
START = "start.safetensors"  # in a training's folder: the weights before update 1, if they are another model's
STATE, HASHES = "state.json", "sha256.json"


class _Saved(BaseModel):
    """The base of what `state.json` holds. A validation loss may be infinite, so JSON's Infinity is allowed."""

    model_config = ConfigDict(extra="forbid", strict=True, ser_json_inf_nan="constants")


class ResumeConditions(_Saved, extra="ignore"):
    """What must be the same for a resumed training to be bit-identical. The number of processes need not be.

    Further conditions, of a state that other code saved, are left out.
    """

    device: str  # the GPU's model, or `cpu`
    processor: str  # the CPU's model; empty on GPUs
    threads: int  # CPU threads of a process; 0 on GPUs
    compiled: bool
    deterministic: bool
    torch: str
    portable: bool = False  # whether arithmetic is portable: then the other conditions may differ

    def differences(self, now: ResumeConditions) -> list[str]:
        """Return a phrase for each condition that is different `now`, and matters."""
        if self.portable and now.portable:
            return []
        both = zip(self, now, strict=True)
        return [f"{name} was {before!r} and is {after!r}" for (name, before), (_, after) in both if before != after]


class Interval(_Saved):
    """Sums over the updates since the last report."""

    loss: float = 0.0  # smoothed loss, in nats
    nll: float = 0.0  # negative log-likelihood, in nats
    norm: float = 0.0  # sum of the finite gradient norms
    updates: int = 0
    sums: LengthSums = LengthSums()
    skipped: int = 0  # updates whose gradient was not finite
    seconds: float = 0.0


class TrainState(_Saved):
    """All that a training resumes from, apart from weights and moments; by default before the first update."""

    update: int = 0  # the last finished update; updates count from 1
    sums: LengthSums = LengthSums()  # over all pairs trained on
    padded: int = 0  # positions of all shards, padding included
    interval: Interval = Field(default_factory=Interval)
    valid_loss: float = math.inf  # the last validation loss; infinite before the first validation
    best_loss: float = math.inf  # the least loss of the validations that `validate_every` asks for
    validations_since_best: int = 0
    last_finite: int = 0  # the last update whose gradient was finite
    seconds: float = 0.0  # training time over all attempts, including time lost to kills
    device_seconds: dict[str, float] = {}
    """Training time multiplied by devices, by device model: a training may move to other devices."""
    resumes: int = 0
    processes: int  # processes of the training that saved the state
    updates: int  # `training.updates` of the training that saved the state
    validate_every: int  # as `updates`: both decide after which updates losses are recorded
    conditions: ResumeConditions

    def resumed(self, recorded: float, attempt: TrainState) -> TrainState:
        """Return this saved state as the start of an attempt, whose own initial state is `attempt`.

        Its time is at least `recorded` seconds, the last time logged before a kill; what was lost is attributed to the
        devices that saved the state.
        """
        device, seconds = self.conditions.device, max(self.seconds, recorded)
        lost = (seconds - self.seconds) * hardware.devices(device, self.processes)
        return self.model_copy(
            update={
                "resumes": self.resumes + 1,
                "seconds": seconds,
                "device_seconds": {**self.device_seconds, device: self.device_seconds.get(device, 0.0) + lost},
                **{name: getattr(attempt, name) for name in ("processes", "updates", "validate_every", "conditions")},
            }
        )

    @property
    def padding(self) -> float:
        return 1 - (self.sums.source + self.sums.target) / max(1, self.padded)


def save_state(
    folder: Path,
    state: TrainState,
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    keeps: Callable[[int], bool] = lambda _: False,
) -> None:
    """Save a state of the training in `folder`; once it is complete, remove the others, but for those that it `keeps`.

    An existing state is never rewritten, so a complete newest state exists at every moment.
    """
    path = folder / "resume" / f"update-{state.update:08d}"
    if not path.exists():
        with writing(path) as temporary:
            temporary.mkdir()
            save_tensors(temporary / WEIGHTS, model.state_dict())
            save_tensors(temporary / MOMENTS, moments(model, optimizer))
            (temporary / STATE).write_text(state.model_dump_json(indent=2), encoding="utf-8")
            write_json(temporary / HASHES, {name: sha256_of(temporary / name) for name in (WEIGHTS, MOMENTS, STATE)})
    kept = {path, *(other for other in checkpoint.states(folder) if keeps(checkpoint.update_of(other)))}
    for other in path.parent.glob("*update-*"):  # Also those that a kill left unfinished.
        if other not in kept:
            # NFS keeps an open file, as one that is being uploaded, in its folder: the next save removes both.
            shutil.rmtree(other, ignore_errors=True)


def is_whole(path: Path) -> bool:
    """Return whether the files of a saved state have the hashes with which they were saved, if these are known."""
    try:
        hashes = json.loads((path / HASHES).read_text(encoding="utf-8"))
        return all(sha256_of(path / name) == digest for name, digest in hashes.items())
    except FileNotFoundError:
        return not (path / HASHES).exists()
    except (ValueError, AttributeError):  # another OSError may pass: it says nothing about the state
        return False


def moments(model: Transformer, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return the optimizer's values of every parameter by the names that a saved state has."""
    return {
        f"{key}.{name}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }


def load_state(path: Path, model: Transformer, optimizer: torch.optim.Optimizer) -> TrainState:
    """Load weights and moments from the state in folder `path`; raise InputError where they do not fit the model."""
    state = read_state(path)
    load_weights(path / WEIGHTS, model)
    saved = load_tensors(path / MOMENTS)
    keys = {key.partition(".")[0] for key in saved}
    for name, parameter in model.named_parameters():
        optimizer.state[parameter] = {
            # Fused Adam keeps its step count on the parameter's device. On CPUs a tensor that is no copy keeps the file
            # mapped into memory.
            key: saved[f"{key}.{name}"].to(parameter.device, copy=True)
            for key in keys
        }
    return state


def load_weights(path: Path, model: Transformer) -> None:
    """Load the weights of another training from a file; raise InputError where they do not fit the model."""
    try:
        model.load_state_dict(load_tensors(path))
    except RuntimeError as error:
        problem = str(error).splitlines()[-1].strip()
        raise InputError(f"{path}: {problem} training.start_from can change no size of the model.") from error


def read_state(path: Path) -> TrainState:
    """Return the TrainState in folder `path`; raise InputError without it, for wrong keys and for wrong values."""
    try:
        return TrainState.model_validate_json((path / STATE).read_bytes())
    except (OSError, ValidationError) as error:
        problem = explain(error) if isinstance(error, ValidationError) else str(error)
        raise InputError(
            f"{path / STATE} cannot be resumed from ({problem}): remove {path} to start this training again"
        ) from error
