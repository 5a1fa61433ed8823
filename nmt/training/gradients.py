"""Gradients of one process, and their sum over all processes, which starts during the backward pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed import Work

from nmt.training.distributed import World

BUCKET_BYTES = 50_000_000
"""Bytes that are summed over the processes together: enough to use the bandwidth, few enough to start early."""


class Gradients:
    """The gradients of an update, accumulated over its micro-batches and summed over all processes.

    With several processes each gradient is a view of one of a few flat buckets, in the order in which a backward pass
    completes them: the decoder's last layer first, the shared embedding last. A complete bucket is summed over the
    processes in the background. Every process sums every bucket in the same order, even without a micro-batch.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], world: World) -> None:
        self.parameters, self.world = list(parameters), world
        self.pending: dict[nn.Parameter, None] = {}
        """Parameters whose gradients the current backward pass has not produced yet, in order."""
        self._last = False
        self._buckets: list[Tensor] = []
        self._bucket_of: dict[nn.Parameter, int] = {}
        self._incomplete: list[int] = []
        """For each bucket, how many of its gradients are incomplete."""
        self._works: list[Work] = []
        if world.size > 1:
            self._make_buckets()
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self._gradient_ready)

    def _make_buckets(self) -> None:
        groups: list[list[nn.Parameter]] = []
        size = BUCKET_BYTES
        for parameter in reversed(self.parameters):
            if size >= BUCKET_BYTES:
                groups.append([])
                size = 0
            groups[-1].append(parameter)
            size += parameter.numel() * parameter.element_size()
        for number, group in enumerate(groups):
            bucket = torch.zeros(sum(p.numel() for p in group), dtype=group[0].dtype, device=group[0].device)
            for parameter, part in zip(group, bucket.split([p.numel() for p in group]), strict=True):
                parameter.grad = part.view_as(parameter)
                self._bucket_of[parameter] = number
            self._buckets.append(bucket)

    def start(self) -> None:
        """Start an update: set all gradients to zero."""
        self._works.clear()
        if not self._buckets:
            for parameter in self.parameters:
                parameter.grad = None
            return
        for bucket in self._buckets:
            bucket.zero_()
        self._incomplete = [0] * len(self._buckets)
        for number in self._bucket_of.values():
            self._incomplete[number] += 1

    def expect(self, parameters: Sequence[nn.Parameter], last: bool) -> None:
        """Set which gradients the next backward pass adds to, and whether it is this process' last of the update."""
        self.pending = dict.fromkeys(parameters)
        self._last = last

    def _gradient_ready(self, parameter: Tensor) -> None:
        assert isinstance(parameter, nn.Parameter)
        self.pending.pop(parameter, None)
        if self._last and self._buckets:
            self._incomplete[self._bucket_of[parameter]] -= 1
            while len(self._works) < len(self._buckets) and self._incomplete[len(self._works)] == 0:
                self._start_sum()

    def _start_sum(self) -> None:
        self._works.append(self.world.start_sum(self._buckets[len(self._works)]))

    def finish(self) -> list[Tensor]:
        """Return tensors that hold every parameter's gradient once, summed over all processes."""
        while len(self._works) < len(self._buckets):
            self._start_sum()
        for work in self._works:
            work.wait()
        if self._buckets:
            return self._buckets
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]
