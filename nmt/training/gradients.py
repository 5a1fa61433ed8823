"""The gradients of an update: a sum over its shards along one fixed binary tree, whatever process holds which shard."""

from __future__ import annotations

import torch
from torch import Tensor

from nmt.training.distributed import World

Tensors = tuple[Tensor, ...] | list[Tensor]
"""One of each parameter."""


class Gradients:
    """The sum of an update's gradients over its shards: 0 and 1, 2 and 3, then these sums, and so on.

    The sum of floating-point numbers depends on their order, so one tree gives one sum on any number of processes. A
    process holds consecutive shards and sums its part of the tree as a binary counter counts: with n shards, it keeps
    at most log2(n) sums at a time. Then the processes sum theirs.
    """

    def __init__(self) -> None:
        self._shards = 0
        self._sums: list[Tensors] = []
        """Sums of complete subtrees, the largest first; each waits for the sum on its right."""

    def add(self, gradients: Tensors) -> None:
        """Add the next shard's gradients, whose memory the sum may use."""
        self._shards += 1
        count = self._shards
        while count % 2 == 0:
            left = self._sums.pop()
            torch._foreach_add_(left, gradients)
            gradients, count = left, count // 2
        self._sums.append(gradients)

    def total(self, world: World, *, in_fixed_order: bool = True) -> Tensors:
        """Return the sums over the shards of all processes; each has as many shards, a power of two.

        `in_fixed_order`: continue the tree over the processes; else NCCL chooses the order, which is faster.
        """
        (own,) = self._sums
        if world.size == 1:
            return own
        shapes, sizes = [gradient.shape for gradient in own], [gradient.numel() for gradient in own]
        padding = -sum(sizes) % world.size
        flat = torch.cat([*(gradient.flatten() for gradient in own), own[0].new_zeros(padding)])
        del own
        self._sums.clear()  # Two copies of all gradients are enough.
        world.tree_sum(flat) if in_fixed_order else world.sum(flat)
        return [part.view(shape) for part, shape in zip(flat.split([*sizes, padding]), shapes, strict=False)]
