"""The gradients of an update: a sum over its shards along one fixed binary tree, whatever process holds which shard."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed import Work, all_reduce

from nmt.training.distributed import World

Tensors = tuple[Tensor, ...] | list[Tensor]  # one of each parameter
BUCKET = 2**23
"""Gradients that are summed over the processes at a time, 34 MB and the rest of a parameter: base has 6 buckets."""


class Gradients:
    """The sum of an update's gradients over its shards: 0 and 1, 2 and 3, then these sums, and so on.

    The sum of floating-point numbers depends on their order, so one tree gives one sum on any number of processes. A
    process holds consecutive shards and sums its part of the tree as a binary counter counts: with n shards, it keeps
    at most log2(n) sums at a time. Then the processes sum theirs.
    """

    def __init__(self, parameters: list[nn.Parameter], world: World) -> None:
        self._parameters, self._world = parameters, world
        self._shards = 0
        self._sums: list[Tensors] = []
        """Sums of complete subtrees, the largest first; each waits for the sum on its right."""

    def backward(self, loss: Tensor | None) -> None:
        """Run the next shard's backward pass and add its gradients; None: of an empty shard."""
        if loss is None:
            self.add([torch.zeros_like(parameter) for parameter in self._parameters])
        else:
            self.add(torch.autograd.grad(loss, self._parameters))

    def add(self, gradients: Tensors) -> None:
        """Add the next shard's gradients, whose memory the sum may use."""
        self._shards += 1
        count = self._shards
        while count % 2 == 0:
            left = self._sums.pop()
            torch._foreach_add_(left, gradients)
            gradients, count = left, count // 2
        self._sums.append(gradients)

    def total(self) -> Tensors:
        """Return the sums over the shards of all processes; each has as many shards, a power of two."""
        (gradients,), world = self._sums, self._world
        if world.size == 1:
            return gradients
        shapes, sizes = [gradient.shape for gradient in gradients], [gradient.numel() for gradient in gradients]
        padding = -sum(sizes) % world.size
        flat = torch.cat([*(gradient.flatten() for gradient in gradients), gradients[0].new_zeros(padding)])
        del gradients
        self._sums.clear()  # Two copies of all gradients are enough.
        world.tree_sum(flat)
        return [part.view(shape) for part, shape in zip(flat.split([*sizes, padding]), shapes, strict=False)]


class OverlappedGradients:
    """The same sum in no fixed order: processes sum the first gradients while they compute the others.

    Gradients lie in buckets in the order in which the backward pass computes them: the last parameter's lies in the
    first bucket. The sum of a bucket over the processes begins when this process's shard, its only one, has been added
    to it. Before an update all gradients must be set to 0, in place.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._parameters = parameters
        self._buckets: list[Tensor] = []
        self._sums: list[Work] = []  # of the first buckets, begun in the same order on every process
        groups: dict[int, list[nn.Parameter]] = {}
        before = 0
        for parameter in reversed(parameters):
            groups.setdefault(before // BUCKET, []).append(parameter)
            before += parameter.numel()
        for number, group in enumerate(groups.values()):
            lengths = [parameter.numel() for parameter in group]
            self._buckets.append(group[0].new_zeros(sum(lengths)))
            for parameter, part in zip(group, self._buckets[number].split(lengths), strict=True):
                parameter.grad = part.view_as(parameter)
                parameter.register_post_accumulate_grad_hook(lambda p, number=number: self._added(number, p))
        self._missing = [bucket.numel() for bucket in self._buckets]
        """How many numbers have still to be added to each bucket; an empty shard's never are."""

    def backward(self, loss: Tensor | None) -> None:
        if loss is not None:
            loss.backward()

    def _added(self, number: int, parameter: Tensor) -> None:
        self._missing[number] -= parameter.numel()
        while len(self._sums) < len(self._buckets) and self._missing[len(self._sums)] == 0:
            self._sums.append(all_reduce(self._buckets[len(self._sums)], async_op=True))

    def total(self) -> Tensors:
        self._sums += [all_reduce(bucket, async_op=True) for bucket in self._buckets[len(self._sums) :]]
        for bucket_sum in self._sums:
            bucket_sum.wait()
        self._sums.clear()
        self._missing = [bucket.numel() for bucket in self._buckets]
        return [cast("Tensor", parameter.grad) for parameter in self._parameters]
