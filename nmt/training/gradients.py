"""Gradients of an update: sums over its shards along one fixed binary tree, whatever process holds which shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread

import torch
from torch import Tensor, nn

from nmt.training.distributed import World

BUCKET_BYTES = 50_000_000
"""Bytes that are summed over the processes together: enough to use the bandwidth, few enough to start early."""
ALIGNMENT = 64
"""A gradient in a bucket starts at a multiple of this many elements, as one by itself does: a sum of squares on a GPU
depends on it."""


class Gradients:
    """The gradients of an update, summed over its shards: 0 and 1, 2 and 3, then these sums, and so on.

    The sum of floating-point numbers depends on their order, so one tree gives one sum on any number of processes. A
    process holds consecutive shards and sums its part of the tree as a binary counter counts: with n shards, it keeps
    at most log2(n) sums at a time. Then the processes sum theirs in a few flat buckets, in the order in which a
    backward pass completes them: the decoder's last layer first, the shared embedding last. The sum of a complete
    bucket starts while the last backward pass continues.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], world: World, shards: int) -> None:
        """`shards`: the number of this process' shards of an update."""
        self.parameters, self.world, self.shards = list(parameters), world, shards
        self._shard = 0
        """Shards of this update whose backward pass has started."""
        self._waiting: dict[nn.Parameter, list[Tensor]] = {parameter: [] for parameter in self.parameters}
        """Sums of complete subtrees on the left, each of which waits for the sum on its right."""
        self._buckets = _buckets(self.parameters, world.size) if world.size > 1 else []
        self._bucket_of = {parameter: bucket for bucket in self._buckets for parameter in bucket.views}
        self._started = 0
        """Buckets whose sum over the processes has started."""
        self._sums: list[Future[None]] = []
        on_gpu = world.device.type == "cuda"
        self._thread = _SumThread() if self._buckets and not on_gpu else None
        self._stream = torch.cuda.Stream(world.device) if self._buckets and on_gpu else None
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self._add)

    def start(self) -> None:
        """Start an update."""
        self._shard = self._started = 0
        for parameter in self.parameters:
            parameter.grad = None
            self._waiting[parameter].clear()
        for bucket in self._buckets:
            bucket.missing = len(bucket.views)

    def start_shard(self) -> None:
        """Start the next shard: call this before its backward pass."""
        self._shard += 1

    def add_empty_shard(self) -> None:
        """Add the next shard, which has no pair: its gradient is 0."""
        self.start_shard()
        for parameter in reversed(self.parameters):
            parameter.grad = torch.zeros_like(parameter)
            self._add(parameter)

    def _add(self, parameter: Tensor) -> None:
        """Take a shard's gradient of a parameter; add it to the sums that it completes."""
        assert isinstance(parameter, nn.Parameter)
        assert parameter.grad is not None
        gradient, waiting, count = parameter.grad, self._waiting[parameter], self._shard
        while count % 2 == 0:
            gradient = waiting.pop().add_(gradient)
            count //= 2
        if self._shard < self.shards:
            waiting.append(gradient)
            parameter.grad = None
            return
        parameter.grad = gradient
        if self._buckets:
            self._fill(self._bucket_of[parameter])

    def _fill(self, bucket: _Bucket) -> None:
        """Count a gradient that is summed over this process' shards; start the sums of the buckets that are complete.

        Every process starts them in the same order.
        """
        bucket.missing -= 1
        while self._started < len(self._buckets) and not self._buckets[self._started].missing:
            self._start_sum(self._buckets[self._started])
            self._started += 1

    def _start_sum(self, bucket: _Bucket) -> None:
        bucket.take()
        if self._thread is not None:
            # gloo's messages wait for each other on the host.
            self._sums.append(self._thread.start_call(lambda: self.world.tree_sum(bucket.flat)))
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                self.world.tree_sum(bucket.flat)

    def finish(self) -> list[Tensor]:
        """Return the gradient of every parameter, summed over the shards of all processes."""
        for started in self._sums:
            started.result()
        self._sums.clear()
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]


class FlatGradients:
    """The same sums for gradients in flat tensors, which every shard's pass writes anew: one addition for each tensor.

    They start when the last pass has ended.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], world: World, shards: int) -> None:
        """`shards`: the number of this process' shards of an update."""
        self.parameters, self.world, self.shards = list(parameters), world, shards
        buckets = _buckets(self.parameters, world.size)
        self.flats = [bucket.flat for bucket in buckets]
        views = {parameter: view for bucket in buckets for parameter, view in bucket.views.items()}
        self.views = [views[parameter] for parameter in self.parameters]
        """Where a shard's pass writes the gradient of each parameter."""
        self._shard = 0
        self._waiting: list[list[Tensor]] = []
        """Sums of complete subtrees on the left, each of which waits for the sum on its right."""

    def start(self) -> None:
        """Start an update."""
        self._shard = 0
        self._waiting.clear()

    def add_shard(self) -> None:
        """Add the gradients of the next shard to the sums that they complete."""
        self._shard += 1
        count = self._shard
        while count % 2 == 0:
            torch._foreach_add_(self.flats, self._waiting.pop())
            count //= 2
        if self._shard < self.shards:
            self._waiting.append([flat.clone() for flat in self.flats])

    def finish(self) -> list[Tensor]:
        """Return the gradient of every parameter, summed over the shards of all processes."""
        for flat in self.flats:
            self.world.tree_sum(flat)
        for parameter, view in zip(self.parameters, self.views, strict=True):
            parameter.grad = view
        return self.views


class _SumThread(Thread):
    """Calls functions one after the other.

    A daemon, because an executor's thread, waiting for another process, would keep a process that fails from ending.
    """

    def __init__(self) -> None:
        super().__init__(name="gradients", daemon=True)
        self._calls: SimpleQueue[tuple[Callable[[], None], Future[None]]] = SimpleQueue()
        self.start()

    def start_call(self, function: Callable[[], None]) -> Future[None]:
        """Call the function after those before it; the returned future ends with it, or has its error."""
        future: Future[None] = Future()
        self._calls.put((function, future))
        return future

    def run(self) -> None:
        while True:
            function, future = self._calls.get()
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)


class _Bucket:
    """Gradients in one flat tensor."""

    def __init__(self, parameters: Sequence[nn.Parameter], processes: int) -> None:
        # Both are powers of two, and the number of processes must divide the length.
        alignment = max(ALIGNMENT, processes)
        sizes = [-(-parameter.numel() // alignment) * alignment for parameter in parameters]
        self.flat = torch.zeros(sum(sizes), dtype=parameters[0].dtype, device=parameters[0].device)
        parts = zip(parameters, self.flat.split(sizes), strict=True)
        self.views = {parameter: part[: parameter.numel()].view_as(parameter) for parameter, part in parts}
        self.missing = 0
        """Gradients that are not summed over this process' shards yet."""

    def take(self) -> None:
        """Copy the parameters' gradients, and make them views of the flat tensor."""
        for parameter, view in self.views.items():
            assert parameter.grad is not None
            parameter.grad = view.copy_(parameter.grad)


def _buckets(parameters: Sequence[nn.Parameter], processes: int) -> list[_Bucket]:
    """Return buckets of about BUCKET_BYTES, in the order in which a backward pass completes them."""
    groups: list[list[nn.Parameter]] = []
    size = BUCKET_BYTES
    for parameter in reversed(parameters):
        if size >= BUCKET_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(parameter)
        size += parameter.numel() * parameter.element_size()
    return [_Bucket(group, processes) for group in groups]
