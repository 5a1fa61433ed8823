"""Gradients of one process, and their sum over all of them, begun while the backward pass still goes on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed import Work

from nmt.training.distributed import World

BUCKET = 50_000_000
"""Bytes that go to the other processes together: enough to fill a link, few enough that the first go early."""


class Gradients:
    """What the micro-batches of an update add to the parameters' gradients.

    With several processes each gradient is a part of one of a few flat buckets, in the order in which a backward pass
    ends with them: the decoder's last layer first, the shared embedding last. A bucket whose gradients are complete is
    summed over the processes in the background. Every process sums every bucket in the same order, whether it has a
    micro-batch or not.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], world: World) -> None:
        self.parameters, self.world = list(parameters), world
        self.left: dict[nn.Parameter, None] = {}
        """Those that the micro-batch at work has not reached yet, in order."""
        self._last = False
        self._buckets: list[Tensor] = []
        self._bucket_of: dict[nn.Parameter, int] = {}
        self._missing: list[int] = []
        self._works: list[Work] = []
        if world.size > 1:
            self._make_buckets()
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self._arrived)

    def _make_buckets(self) -> None:
        groups: list[list[nn.Parameter]] = []
        size = BUCKET
        for parameter in reversed(self.parameters):
            if size >= BUCKET:
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
        """Begin an update: all gradients are zero."""
        self._works.clear()
        if not self._buckets:
            for parameter in self.parameters:
                parameter.grad = None
            return
        for bucket in self._buckets:
            bucket.zero_()
        self._missing = [0] * len(self._buckets)
        for number in self._bucket_of.values():
            self._missing[number] += 1

    def expect(self, parameters: Sequence[nn.Parameter], last: bool) -> None:
        """Say which gradients the next backward pass adds to, and whether it is this process' last of the update."""
        self.left = dict.fromkeys(parameters)
        self._last = last

    def _arrived(self, parameter: Tensor) -> None:
        assert isinstance(parameter, nn.Parameter)
        self.left.pop(parameter, None)
        if self._last and self._buckets:
            self._missing[self._bucket_of[parameter]] -= 1
            while len(self._works) < len(self._buckets) and self._missing[len(self._works)] == 0:
                self._send()

    def _send(self) -> None:
        self._works.append(self.world.start_sum(self._buckets[len(self._works)]))

    def finish(self) -> list[Tensor]:
        """The sums over all processes, in a list of tensors that hold every parameter's gradient once."""
        while len(self._works) < len(self._buckets):
            self._send()
        for work in self._works:
            work.wait()
        if self._buckets:
            return self._buckets
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]
