"""A chain of hashes over a training, and the states kept to train parts of it again.

`chain.jsonl` holds a link for every `training.verify_every` updates, every checkpoint and the last update. A link
hashes weights, optimizer moments and the losses recorded since the link before it, together with that link's hash.
Anyone can train the updates between two links again, from a kept state, and compare the result to the bit. Changing one
link changes all later ones.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from nmt.common.tensors import WEIGHTS, digest, load_tensors
from nmt.errors import explained
from nmt.model import Transformer
from nmt.training import state
from nmt.training.history import CHAIN, HISTORY, append, read_history
from nmt.training.settings import TrainingSettings
from nmt.training.state import ResumeConditions

INTERVAL = ("loss", "nll", "ppl", "learning_rate", "gradient_norm")
"""What a link hashes of the history's records of intervals; results/training.csv has these columns, too."""
VALIDATION = ("valid_loss", "valid_ppl")
"""What a link hashes of the history's records of validations; results/validation.csv has these columns, too."""


class Link(BaseModel):
    """The hashes of a training after an update, all sha256 in hexadecimal."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    update: int
    updates: int  # `training.updates` at that time: it decides how often losses are recorded
    weights: str
    moments: str
    losses: str  # of what was recorded since the link before
    conditions: dict[str, str | int | bool]
    """What must be the same for equal bits (ResumeConditions). Not hashed, because it may differ where bits agree."""
    link: str  # of update, weights, moments, losses and the previous link's hash
    validate_every: int  # `training.validate_every` at that time; not hashed


def link_hash(previous: Link | None, *content: int | str) -> str:
    """Return the hash of a link's update, weights, moments and losses after the previous link."""
    return hashlib.sha256(json.dumps([previous.link if previous else "", *content]).encode()).hexdigest()


def losses_hash(records: Iterable[Mapping[str, Any]], after: int, last: int) -> str:
    """Return the hash of the losses recorded from update `after` + 1 to `last`; times and speeds are left out."""
    rows = [
        (int(record["update"]), number, [float(record[key]) for key in keys])
        for record in records
        for number, keys in enumerate((VALIDATION, INTERVAL))
        if keys[0] in record and after < record["update"] <= last
    ]
    return hashlib.sha256(json.dumps(sorted(rows)).encode()).hexdigest()


def read_chain(path: Path) -> list[Link]:
    """Return the links of a chain file, the first update first; raise InputError where a key or a value is wrong."""
    with explained(f"{path} holds no chain of hashes (", "): train again"):
        return [Link.model_validate(entry) for entry in read_history(path)]


def broken(links: Sequence[Link]) -> Link | None:
    """Return the first link whose hash does not follow from its content and the link before; None if all do."""
    for link, previous in zip(links, [None, *links], strict=False):
        if link.link != link_hash(previous, link.update, link.weights, link.moments, link.losses):
            return link
    return None


def add_link(
    folder: Path,
    settings: TrainingSettings,
    update: int,
    weights_and_moments: Sequence[Mapping[str, Tensor]],
    conditions: ResumeConditions,
) -> None:
    """Append the link after `update` to the chain of the training in `folder`, unless it is there already."""
    links = read_chain(folder / CHAIN)
    previous = links[-1] if links else None
    if previous is not None and previous.update >= update:
        return
    weights, moments = map(digest, weights_and_moments)
    losses = losses_hash(read_history(folder / HISTORY), previous.update if previous else 0, update)
    link = Link(
        update=update, updates=settings.updates, weights=weights, moments=moments, losses=losses,
        conditions=conditions.model_dump(), link=link_hash(previous, update, weights, moments, losses),
        validate_every=settings.validate_every,
    )  # fmt: skip
    append(folder / CHAIN, link.model_dump())


def host_copies(model: Transformer, optimizer: torch.optim.Optimizer) -> list[dict[str, Tensor]]:
    """Return copies of weights and moments on the host, which a thread can hash while training continues."""
    both = model.state_dict(), state.moments(model, optimizer)
    copies = [
        {name: torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda).copy_(tensor, non_blocking=True)
         for name, tensor in tensors.items()}
        for tensors in both
    ]  # fmt: skip
    if model.output_table.is_cuda:
        torch.cuda.synchronize()
    return copies


def is_link(settings: TrainingSettings, update: int) -> bool:
    """Return whether the settings ask for a link after this update. The last update always has one."""
    intervals = (settings.checkpoint_every, settings.verify_every)
    return any(every is not None and update % every == 0 for every in intervals)


def keep_every(settings: TrainingSettings) -> int | None:
    """Return how many updates lie between two kept states, which are kept at links; None where none is kept."""
    if settings.keep_states == 0:
        return None
    links, apart = settings.verify_every or settings.checkpoint_every, settings.updates / (settings.keep_states + 1)
    return links * math.ceil(apart / links)


def state_hashes(path: Path) -> tuple[str, str]:
    """Return the hashes of a saved state's weights and moments; raise InputError for a damaged file."""
    return digest(load_tensors(path / WEIGHTS)), digest(load_tensors(path / state.MOMENTS))
