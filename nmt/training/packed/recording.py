"""A shard's forward and backward pass, recorded once for each shape as a CUDA graph and then repeated.

A pass of row `base` is some 1,600 operations, which take longer to start one by one than to compute. A graph is started
at once. It reads and writes the same memory every time: the batch is copied there, gradients and losses are
taken from there.
"""

from __future__ import annotations

import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
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
        tolerance: float = TOLERANCE,
    ) -> None:
        """`losses`: the model's forward pass; the smoothed loss and the negative log-likelihood, summed.

        `seed`: seeds the random numbers of the device. `recorder`: None to record nothing. `tolerance`: how far a
        repeated pass' gradient may be from the pass', relative to its norm.
        """
        self._losses, self._gradients, self._model = losses, gradients, model
        self._seed, self._recorder, self._tolerance = seed, recorder, tolerance
        self._batches: dict[Shape, PackedBatch] = {}
        """The memory that a shape's batches are copied to."""
        self._passes: Counter[Shape] = Counter()
        self._repeat: dict[Shape, Callable[[], None]] = {}
        self._kept: list[Tensor] = []
        """Tables of positions that recordings read: the model has others once a sentence is longer than they are."""
        self._result = torch.zeros(2, dtype=torch.float64, device=gradients.views[0].device)

    @property
    def recorded(self) -> int:
        """Shapes whose pass is recorded."""
        return len(self._repeat)

    def __call__(self, batch: PackedBatch, seed: int) -> Tensor:
        """Return the smoothed loss and the negative log-likelihood of a batch, [2], with random numbers of this seed.

        The host does not wait for the device, except where a shape is recorded. Raises InputError if that fails.
        """
        self._seed(seed)
        if self._recorder is None:
            self._run(batch)
        elif not batch.common:
            self._recorder.warm_up(lambda: self._run(batch))
        else:
            self._run_common(batch, seed, self._recorder)
        self._gradients.add_shard()
        return self._result

    def _run_common(self, batch: PackedBatch, seed: int, recorder: Recorder) -> None:
        """Repeat the pass of the batch's shape; before there is a recording, run it, and record it in the end."""
        shape = batch.shape
        if shape not in self._batches:
            self._batches[shape] = PackedBatch(shape, batch.common, batch.flat.clone())
        fixed = self._batches[shape]
        fixed.flat.copy_(batch.flat)
        if shape in self._repeat:
            self._repeat[shape]()
            return
        recorder.warm_up(lambda: self._run(fixed))
        self._passes[shape] += 1
        if self._passes[shape] > WARM_UP:
            self._record(fixed, seed, recorder)

    def _record(self, fixed: PackedBatch, seed: int, recorder: Recorder) -> None:
        """Record the pass that has just run; if what is recorded gives another gradient, record nothing any more."""
        expected, result = [flat.clone() for flat in self._gradients.flats], self._result.clone()
        norm = _norm(expected)
        if not 0 < norm < math.inf:
            return  # The next batch of this shape has a gradient to compare with.
        try:
            repeat = recorder.record(lambda: self._run(fixed))
        except Exception as error:
            # torch raises errors of many types, the last of them about the recording that was broken off.
            raise InputError(
                f"a pass of the model cannot be recorded as a CUDA graph here ({_first_cause(error)}): set NMT_GRAPH=0"
            ) from error
        self._seed(seed)
        repeat()
        difference = _norm([flat - own for flat, own in zip(self._gradients.flats, expected, strict=True)])
        if difference <= self._tolerance * norm:
            self._repeat[fixed.shape] = repeat
            self._kept.extend(self._model.buffers())
            return
        print(
            f"a recorded pass has another gradient, by {difference:.3g} where its norm is {norm:.3g}: training "
            "continues without recordings, more slowly",
            file=sys.stderr,
        )
        self._recorder = None
        self._repeat.clear()
        torch._foreach_copy_(self._gradients.flats, expected)
        self._result.copy_(result)

    def _run(self, batch: PackedBatch) -> None:
        """Write the batch's gradients and losses to their memory."""
        smoothed, negative_log_likelihood = self._losses(batch)
        found = torch.autograd.grad((smoothed / batch.update_tokens).squeeze(), self._gradients.parameters)
        torch._foreach_copy_(self._gradients.views, found)
        self._result.copy_(torch.stack((smoothed.detach(), negative_log_likelihood)))


def _norm(tensors: Sequence[Tensor]) -> float:
    return float(torch.nn.utils.get_total_norm(tensors))


def _first_cause(error: BaseException) -> str:
    """Return the first line of the error that the others followed from."""
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    return str(error).strip().split("\n")[0]
