"""How much of an update goes through the model at a time: what the device's memory holds."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch

from nmt.common.files import writing
from nmt.config import BOS, InputError
from nmt.training.batches import MicroBatch

if TYPE_CHECKING:
    from nmt.training.trainer import Trainer

ON_CPU = 2048
"""Positions: enough to fill a product; more leave more padding and take more memory for little."""
SHARE = 0.85
"""Of a GPU's memory that training may take; the rest is for what does not come in our sizes."""


def out_of_memory(error: RuntimeError) -> bool:
    """Whether torch could not get memory. On a CPU it says so in words alone."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


def micro_tokens(trainer: Trainer, folder: Path, longest: int) -> int:
    """Padded positions a side that go through the model together: the least of all ranks' choices.

    `$NMT_MICRO_TOKENS`; else what `folder` remembers for this kind of device; else, on a GPU, found by trial on pairs
    of `longest` subwords, and remembered.
    """
    wanted, device = os.environ.get("NMT_MICRO_TOKENS"), trainer.world.device
    if wanted and (not wanted.isdecimal() or int(wanted) < 1):
        raise InputError(f"NMT_MICRO_TOKENS is {wanted!r}: it must be a whole number from 1 on, or unset")
    known = int(wanted) if wanted else remembered(folder, device_name(device))
    if known is None and device.type == "cpu":
        known = ON_CPU
    share = -(-trainer.settings.tokens // trainer.world.size)
    # Ranks may differ in what they were told and remember: all of them come here.
    found = trainer.world.minimum(known or by_trial(trainer, longest, share + share // 4, GpuMemory(device)))
    if known is None and trainer.world.main:
        remember(folder, device_name(device), found)
    return found


def device_name(device: torch.device) -> str:
    """The device's model, so that what one remembers is not taken for another's."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def remembered(folder: Path, device: str) -> int | None:
    """What was found on such a device before."""
    return _all_remembered(folder).get(device)


def _all_remembered(folder: Path) -> dict[str, int]:
    path = folder / "micro.json"
    known: dict[str, int] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return known


def remember(folder: Path, device: str, tokens: int) -> None:
    """Keep what was found for the next start."""
    with writing(folder / "micro.json") as temporary:
        temporary.write_text(json.dumps({**_all_remembered(folder), device: tokens}), encoding="utf-8")


@runtime_checkable
class DeviceMemory(Protocol):
    """What `fits` asks of a device: bytes of its memory."""

    def reset_peak(self) -> None:
        """Begin to measure the peak anew."""

    def peak(self) -> int:
        """The most that this process held since `reset_peak`."""

    def available(self) -> int:
        """What this process holds and what is free."""


class GpuMemory:
    """A GPU's memory. Counted as reserved: what torch's allocator has taken from the device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def reset_peak(self) -> None:
        """Give back what is cached, so that an earlier pass does not count."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int:
        """The most that torch's allocator had reserved."""
        return torch.cuda.max_memory_reserved(self.device)

    def available(self) -> int:
        """What is reserved and what is free."""
        free, _ = torch.cuda.mem_get_info(self.device)
        return free + torch.cuda.memory_reserved(self.device)


def by_trial(trainer: Trainer, longest: int, most: int, device_memory: DeviceMemory) -> int:
    """The most positions, doubled from ON_CPU up to `most`, that a backward pass has room for."""
    size = ON_CPU
    while size < most:
        larger = min(2 * size, most)
        if not fits(trainer, larger, longest, device_memory):
            break
        size = larger
    return size


def fits(trainer: Trainer, size: int, longest: int, device_memory: DeviceMemory) -> bool:
    """Whether a micro-batch of `size` positions in pairs of `longest` subwords leaves the device some room."""
    rows = max(1, size // longest)
    ids = torch.full((rows, longest), BOS)
    batch = MicroBatch(ids, ids, torch.arange(ids.numel()), ids.flatten()).to(trainer.world.device)
    device_memory.reset_peak()
    try:
        smoothed, _ = trainer.losses(batch, trainer.settings.eps_ls)
        smoothed.backward()
        # Adam's two moments come with the first update.
        moments = 2 * sum(p.numel() * p.element_size() for p in trainer.parameters)
        room = device_memory.peak() + moments <= SHARE * device_memory.available()
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        room = False
    trainer.gradients.start()
    return room
