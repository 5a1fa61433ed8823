"""The state that a training saves and resumes from: a schema, and its folder on disk.

A state is a folder `update-<number>` with weights, optimizer moments and `state.json`, which holds a TrainState.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from nmt import flops
from nmt.common.files import writing
from nmt.common.tensors import WEIGHTS, load_tensors, save_tensors
from nmt.config import InputError
from nmt.flops import LengthSums
from nmt.model import Transformer
from nmt.training import checkpoint
from nmt.training.distributed import World, device_name, processor

MOMENTS = "optimizer.safetensors"
STATE = "state.json"


class _Saved(BaseModel):
    """The base of what `state.json` holds. A validation loss may be infinite, so JSON's Infinity is allowed."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, ser_json_inf_nan="constants")


class ResumeConditions(_Saved):
    """What must be the same for a resumed training to be bit-identical. The number of processes need not be."""

    device: str
    """The GPU's model, or `cpu`."""
    processor: str
    """The CPU's model; empty on GPUs."""
    threads: int
    """CPU threads of a process; 0 on GPUs."""
    compiled: bool
    packed: bool = False
    """Whether updates are packed batches of few shapes; states of earlier code have no such value."""
    deterministic: bool
    torch: str

    @classmethod
    def of(cls, world: World, *, compiled: bool, packed: bool, deterministic: bool) -> ResumeConditions:
        """Return the conditions of this process."""
        on_cpu = world.device.type == "cpu"
        return cls(
            device=device_name(world.device),
            processor=processor() if on_cpu else "",
            threads=torch.get_num_threads() if on_cpu else 0,
            compiled=compiled,
            packed=packed,
            deterministic=on_cpu or deterministic,
            torch=torch.__version__,
        )

    def differences(self, now: ResumeConditions) -> list[str]:
        """Return a phrase for each condition that is different `now`."""
        both = zip(self, now, strict=True)
        return [f"{name} was {before!r} and is {after!r}" for (name, before), (_, after) in both if before != after]


class Interval(_Saved):
    """Sums over the updates since the last report."""

    loss: float
    """Smoothed loss, in nats."""
    nll: float
    """Negative log-likelihood, in nats."""
    norm: float
    """Gradient norms; those that are not finite count as 0."""
    updates: int
    sums: LengthSums
    skipped: int
    """Updates whose gradient was not finite."""
    seconds: float

    @classmethod
    def empty(cls) -> Interval:
        """Return the interval of no update."""
        return cls.model_validate({**dict.fromkeys(cls.model_fields, 0), "sums": LengthSums.zero()})


class TrainState(_Saved):
    """All that a training resumes from, apart from weights and optimizer moments."""

    update: int
    """The last finished update; updates count from 1."""
    sums: LengthSums
    """Over all pairs trained on."""
    padded: int
    """Positions of all shards, padding included."""
    interval: Interval
    best_loss: float
    """The lowest validation loss; infinite before the first validation."""
    valid_loss: float
    """The last validation loss; infinite before the first validation."""
    validations_since_best: int
    """Consecutive validations that were not better than the best."""
    last_finite: int
    """The last update whose gradient was finite."""
    seconds: float
    """Training time over all attempts, including time lost to kills."""
    device_seconds: Mapping[str, float]
    """Training time multiplied by devices, by device model: a training may move to other devices."""
    resumes: int
    processes: int
    """Processes of the training that saved the state."""
    updates: int | None = None
    """`training.updates` of the training that saved the state; None where its code did not record it."""
    validate_every: int | None = None
    """As `updates`: both decide after which updates losses are recorded."""
    conditions: ResumeConditions

    @classmethod
    def initial(cls, conditions: ResumeConditions, processes: int) -> TrainState:
        """Return the state before the first update."""
        counts = dict.fromkeys(("update", "padded", "validations_since_best", "last_finite", "seconds", "resumes"), 0)
        rest = {"best_loss": math.inf, "valid_loss": math.inf, "device_seconds": {}}
        rest |= {"processes": processes, "conditions": conditions}
        return cls.model_validate({**counts, **rest, "sums": LengthSums.zero(), "interval": Interval.empty()})

    def with_lost_time(self, recorded: float) -> TrainState:
        """Return this state with its time raised to `recorded` seconds, the last time logged before a kill.

        The time is attributed to the devices that saved the state.
        """
        seconds = max(self.seconds, recorded)
        name = self.conditions.device
        lost = (seconds - self.seconds) * flops.devices(name, self.processes)
        spent = {**self.device_seconds, name: self.device_seconds.get(name, 0.0) + lost}
        return self.model_copy(update={"seconds": seconds, "device_seconds": spent})


def save_state(folder: Path, state: TrainState, model: Transformer, optimizer: torch.optim.Optimizer) -> None:
    """Save a state; remove states of other updates once it is complete.

    An existing state is never rewritten, so a complete newest state exists at every moment.
    """
    path = folder / f"update-{state.update:08d}"
    if not path.exists():
        with writing(path) as temporary:
            temporary.mkdir()
            save_tensors(temporary / WEIGHTS, model.state_dict())
            save_tensors(temporary / MOMENTS, moments(model, optimizer))
            (temporary / STATE).write_text(state.model_dump_json(indent=2), encoding="utf-8")
    for other in (*folder.glob("update-*"), *folder.glob(".update-*")):
        if other != path:
            try:
                shutil.rmtree(other)
            except OSError as error:
                # NFS keeps an open file, as one that is being uploaded, in its folder: the next save removes both.
                if error.errno not in {errno.ENOTEMPTY, errno.EBUSY}:
                    raise


def moments(model: Transformer, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return the optimizer's values of every parameter by the names that a saved state has."""
    return {
        f"{key}.{name}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }


def load_state(path: Path, model: Transformer, optimizer: torch.optim.Optimizer) -> TrainState:
    """Load weights and optimizer moments from the state in folder `path`; return its TrainState."""
    state = read_state(path)
    model.load_state_dict(load_tensors(path / WEIGHTS))
    saved = load_tensors(path / MOMENTS)
    for name, parameter in model.named_parameters():
        optimizer.state[parameter] = {
            # Fused Adam keeps its step count on the parameter's device. On CPUs a tensor that is no copy keeps the file
            # mapped into memory.
            key: saved[f"{key}.{name}"].to(parameter.device, copy=True)
            for key in ("step", "exp_avg", "exp_avg_sq")
        }
    return state


def read_state(path: Path) -> TrainState:
    """Return the TrainState in folder `path`; raise InputError for unknown or missing keys and wrong values."""
    text = (path / STATE).read_text(encoding="utf-8")
    try:
        return TrainState.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        unknown = f"key `{key}` is unknown"
        problems = {"missing": f"key `{key}` is missing", "json_invalid": first["msg"]}
        problems |= dict.fromkeys(("extra_forbidden", "unexpected_keyword_argument"), unknown)
        problem = problems.get(first["type"], f"key `{key}`: {first['msg']}")
        raise InputError(
            f"{path / STATE} cannot be resumed from ({problem}): remove {path} to start this training again"
        ) from error


def check_ranks_agree(world: World, corpus: str, corpus_checksum: int, update: int, weights_checksum: int) -> None:
    """Raise an error if ranks, on machines whose folders differ, would train on different text or weights."""
    if not world.same(corpus_checksum):
        raise InputError(f"the machines' corpora differ: {corpus} must be the same folder on all of them")
    if not world.same(update):
        # Network file systems show new files late: a restart finds them.
        raise RuntimeError(f"this rank would resume after update {update:,}, but another rank after another update")
    if not world.same(weights_checksum):
        raise InputError(
            f"the ranks' weights after update {update:,} differ: give all machines the same settings, "
            "the same version of torch and the same state folder, then start the training again"
        )


def move_earlier_files(folder: Path, logs: Sequence[Path]) -> None:
    """Move logs and checkpoints that no saved state continues to a folder `earlier-<number>`."""
    files = (*logs, *checkpoint.checkpoints(folder / "checkpoints"))
    found = [path for path in files if path.exists() and path.stat().st_size > 0]
    if not found:
        return
    names = (folder / f"earlier-{number}" for number in itertools.count(1))
    earlier = next(path for path in names if not path.exists())
    earlier.mkdir()
    for path in found:
        os.replace(path, earlier / path.name)
    print(
        f"no saved state is in {folder / 'resume'}: training starts at update 1, and the history and checkpoints of "
        f"earlier attempts were moved to {earlier}",
        flush=True,
    )


def remove_later_checkpoints(folder: Path, update: int) -> None:
    """Remove checkpoints after `update`: a training that resumes there writes them again."""
    for path in checkpoint.checkpoints(folder / "checkpoints"):
        if checkpoint.update_of(path) > update:
            path.unlink()


def print_resume(state: TrainState, conditions: ResumeConditions, updates: int) -> None:
    """Print where training resumes, and whether its weights will be those of an undisturbed training."""
    differences = state.conditions.differences(conditions)
    exact = not differences and conditions.deterministic
    reason = "processor, threads, torch and compilation are the same"
    if differences:
        reason = "; ".join(differences)
    elif not exact:
        reason = "without training.deterministic GPUs add in no fixed order"
    weights = f"the weights will {'' if exact else 'not '}be bit-identical to an undisturbed run's"
    print(f"resuming after update {state.update:,} of {updates:,}; {weights}: {reason}", flush=True)
