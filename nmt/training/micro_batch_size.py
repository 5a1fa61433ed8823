"""The micro-batch size: how many positions of an update go through the model together, as the memory allows."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from nmt.common.files import writing
from nmt.config import BOS, InputError
from nmt.training.batches import MicroBatch
from nmt.training.distributed import device_name
from nmt.training.step import Trainer, out_of_memory

ON_CPU = 2048
"""Positions: enough to fill a matrix product; more add padding and memory without much speed."""
SHARE = 0.85
"""The share of a GPU's memory that training may use; the rest is for allocations of other sizes."""


def choose_micro_tokens(trainer: Trainer, folder: Path, longest: int) -> int:
    """Return the padded positions per side that go through the model together: the minimum of all ranks' choices.

    A rank takes `$NMT_MICRO_TOKENS`; else the size cached in `folder` for this device model; else, on a GPU, finds a
    size by trial on pairs of `longest` subwords and caches it.
    """
    requested, device = os.environ.get("NMT_MICRO_TOKENS"), trainer.world.device
    if requested and (not requested.isdecimal() or int(requested) < 1):
        raise InputError(f"NMT_MICRO_TOKENS is {requested!r}: it must be a whole number from 1 on, or unset")
    known = int(requested) if requested else cached_micro_tokens(folder, device_name(device))
    if known is None and device.type == "cpu":
        known = ON_CPU
    share = -(-trainer.settings.tokens // trainer.world.size)
    # Ranks may differ in environment and cache, so all of them take part in the minimum.
    chosen = trainer.world.minimum(known or find_by_trial(trainer, longest, share + share // 4, GpuMemory(device)))
    if known is None and trainer.world.main:
        cache_micro_tokens(folder, device_name(device), chosen)
    return chosen


def _cache(folder: Path) -> dict[str, int]:
    path = folder / "micro.json"
    sizes: dict[str, int] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return sizes


def cached_micro_tokens(folder: Path, device: str) -> int | None:
    """Return the size cached for a device model, or None."""
    return _cache(folder).get(device)


def cache_micro_tokens(folder: Path, device: str, tokens: int) -> None:
    """Cache the size for a device model, for later starts of this training."""
    with writing(folder / "micro.json") as temporary:
        temporary.write_text(json.dumps({**_cache(folder), device: tokens}), encoding="utf-8")


@runtime_checkable
class DeviceMemory(Protocol):
    """The memory of a device, in bytes: `peak` since `reset_peak`; `available`: used by this process or free."""

    def reset_peak(self) -> None: ...
    def peak(self) -> int: ...
    def available(self) -> int: ...


class GpuMemory:
    """The memory of a GPU; what torch's allocator has reserved counts as used."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def reset_peak(self) -> None:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int:
        return torch.cuda.max_memory_reserved(self.device)

    def available(self) -> int:
        return torch.cuda.mem_get_info(self.device)[0] + torch.cuda.memory_reserved(self.device)


def find_by_trial(trainer: Trainer, longest: int, most: int, device_memory: DeviceMemory) -> int:
    """Return the largest size that fits, doubling from ON_CPU up to `most`; ON_CPU itself is not tried."""
    size = ON_CPU
    while size < most:
        larger = min(2 * size, most)
        if not fits(trainer, larger, longest, device_memory):
            break
        size = larger
    return size


def fits(trainer: Trainer, size: int, longest: int, device_memory: DeviceMemory) -> bool:
    """Return whether a micro-batch of `size` positions in pairs of `longest` subwords uses at most SHARE."""
    rows = max(1, size // longest)
    ids = torch.full((rows, longest), BOS)
    batch = MicroBatch(ids, ids, torch.arange(ids.numel()), ids.flatten()).to(trainer.world.device)
    device_memory.reset_peak()
    try:
        trainer.try_batch(batch)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        return False
    return device_memory.peak() + trainer.moments_bytes() <= SHARE * device_memory.available()
