"""Devices with little memory, on a CPU."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nmt.training.batches import MicroBatch
from nmt.training.trainer import Trainer


class LimitedMemory(TorchDispatchMode):
    """Counts the bytes of the tensors made under it, while they live, and refuses what comes above `capacity`."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.held = self.most = self.out_of_memory = 0
        self._known: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage() not in self._known:
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        size = storage.nbytes()
        if self.held + size > self.capacity:
            self.out_of_memory += 1
            raise torch.OutOfMemoryError(f"{self.held + size} of {self.capacity} bytes")
        self._known.add(storage)
        self.held += size
        self.most = max(self.most, self.held)
        weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self.held -= size

    # What nmt.training.micro_batch_size asks of a device.

    def reset_peak(self) -> None:
        self.most = self.held

    def peak(self) -> int:
        return self.most

    def available(self) -> int:
        return self.capacity


class _Full(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("pretended")


def losses_with_room_for(room: int) -> Any:
    """Trainer.losses on a device that runs out of memory in the backward pass, between decoder and encoder.

    That is when a micro-batch has more than `room` positions on a side. The decoder's gradients are there by then.
    """
    losses = Trainer.losses

    def limited(self: Trainer, batch: MicroBatch, eps_ls: float) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled() and max(batch.src.numel(), batch.tgt_in.numel()) > room:
            encode = self.model.encode
            self.model.encode = lambda *given: _Full.apply(encode(*given))
            try:
                return losses(self, batch, eps_ls)
            finally:
                del self.model.encode
        return losses(self, batch, eps_ls)

    return limited
