"""A shard's forward and backward pass, recorded once for each shape as a CUDA graph and then repeated.

A pass of a small model is some 2,000 operations, which take longer to start one by one than to compute. A graph is
started at once. It reads and writes the same memory every time: the batch is copied there, gradients and losses are
taken from there.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from nmt.config import InputError
from nmt.training.gradients import FlatGradients
from nmt.training.packed.batches import PackedBatch
from nmt.training.packed.shapes import Shape

WARM_UP = 2
"""Passes of a shape before it is recorded: compilation and libraries choose and allocate what they need."""
TOLERANCE = 0.01
"""How far the gradient of a repeated pass may be from that of the pass itself, relative to its norm: kernels may add in
another order, and in bfloat16 another method may be chosen. With other dropout it would be much further away."""


@runtime_checkable
class Recorder(Protocol):
    """What records the operations that a function starts on a device."""

    def warm_up(self, run: Callable[[], None]) -> None:
        """Call a function that will be recorded later."""

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        """Call a function only to record what it starts; what this returns starts it."""


def packing_requested(device: torch.device) -> bool:
    """Return whether updates are packed batches: `$NMT_GRAPH`, which is 1 or 0; by default 1 on GPUs and 0 on CPUs."""
    requested = os.environ.get("NMT_GRAPH", "1" if device.type == "cuda" else "0")
    if requested not in {"0", "1"}:
        raise InputError(f"NMT_GRAPH is {requested!r}: it must be 1 or 0, or unset")
    return requested == "1"


class CudaGraphs:
    """Records CUDA graphs that share their memory: they are repeated one after the other."""

    def __init__(self) -> None:
        self._pool, self._stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

    def warm_up(self, run: Callable[[], None]) -> None:
        """Call a function on the stream that it will be recorded on, where libraries keep memory of their own."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            run()
        torch.cuda.current_stream().wait_stream(self._stream)

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        """Record what a function starts on the GPU."""
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as NCCL's watchdog, may ask for events meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            run()
        return graph.replay


class RecordedPass:
    """Adds a shard's gradients to the update's, and returns its losses."""

    def __init__(
        self,
        losses: Callable[[PackedBatch], tuple[Tensor, Tensor]],
        gradients: FlatGradients,
        model: nn.Module,
        seed: Callable[[int], None],
        recorder: Recorder | None,
    ) -> None:
        """`losses`: the model's forward pass; the smoothed loss and the negative log-likelihood, summed.

        `seed`: seeds the random numbers of the device. `recorder`: None to record nothing.
        """
        self._losses, self._gradients, self._model = losses, gradients, model
        self._seed, self._recorder = seed, recorder
        self.shapes: Collection[Shape] = ()
        """What is recorded. Rare other shapes are not."""
        self._batches: dict[Shape, PackedBatch] = {}
        """The memory that a shape's batches are copied to."""
        self._passes: dict[Shape, int] = {}
        self._repeat: dict[Shape, Callable[[], None]] = {}
        self._read: list[Tensor] = []
        """Tables of positions that recordings read: the model has others once a sentence is longer than they are."""
        self._result = torch.zeros(2, dtype=torch.float64, device=gradients.views[0].device)

    def __call__(self, batch: PackedBatch, seed: int) -> Tensor:
        """Return the smoothed loss and the negative log-likelihood of a batch, [2], with random numbers of this seed.

        The host does not wait for the device, except where a shape is recorded.
        """
        if self._recorder is None or batch.shape not in self.shapes:
            self._seed(seed)
            self._run(batch)
        else:
            self._run_recorded(batch, seed, self._recorder)
        self._gradients.add_shard()
        return self._result

    def _run_recorded(self, batch: PackedBatch, seed: int, recorder: Recorder) -> None:
        shape = batch.shape
        fixed = self._batches.setdefault(shape, batch)
        if fixed is not batch:
            fixed.flat.copy_(batch.flat)
        self._seed(seed)
        if shape in self._repeat:
            self._repeat[shape]()
            return
        recorder.warm_up(lambda: self._run(fixed))
        self._passes[shape] = self._passes.get(shape, 0) + 1
        if self._passes[shape] > WARM_UP:
            self._record_checked(fixed, seed, recorder)

    def _record_checked(self, fixed: PackedBatch, seed: int, recorder: Recorder) -> None:
        """Record the pass that has just run; keep the recording if it gives the same gradient, else record no more."""
        expected, result = [flat.clone() for flat in self._gradients.flats], self._result.clone()
        norm = _norm(expected)
        if not math.isfinite(norm):
            return  # Another batch of this shape will do.
        try:
            repeat = recorder.record(lambda: self._run(fixed))
            self._seed(seed)
            repeat()
            error = _norm([flat - own for flat, own in zip(self._gradients.flats, expected, strict=True)])
            if error <= TOLERANCE * norm:
                self._repeat[fixed.shape] = repeat
                self._read.extend(self._model.buffers())
                return
            problem = f"a repeated pass has another gradient, by {error:.3g} where its norm is {norm:.3g}"
        except Exception as reason:
            # torch raises errors of many types if an operation cannot be recorded. None of them prevents training.
            problem = str(reason).strip().split("\n")[0]
        self._recorder = None
        self._repeat.clear()
        for flat, own in zip(self._gradients.flats, expected, strict=True):
            flat.copy_(own)
        self._result.copy_(result)
        print(f"recording does not work here ({problem}): training continues, but slower", file=sys.stderr)

    def _run(self, batch: PackedBatch) -> None:
        """Write the batch's gradients and losses to their memory."""
        smoothed, negative_log_likelihood = self._losses(batch)
        found = torch.autograd.grad((smoothed / batch.update_tokens).squeeze(), self._gradients.parameters)
        torch._foreach_copy_(self._gradients.views, found)
        self._result.copy_(torch.stack((smoothed.detach(), negative_log_likelihood)))


def _norm(tensors: Sequence[Tensor]) -> float:
    return float(torch.nn.utils.get_total_norm(tensors))
