"""What a CUDA graph does, on a CPU: the operations of a function are recorded, and started again on its memory.

Like a graph, a recording knows nothing of Python: a number that the host reads or a branch that it takes is part of the
recording, and reading a value or finding a shape in the data is refused. Unlike a graph, a recording notices no copy
from the host's memory, and holds every tensor that it uses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

REFUSED = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal")
"""On a GPU, the host would wait for these."""


class _Operations(TorchDispatchMode):
    """Records operations below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, list[Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in REFUSED:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func._schema.name}")
        result = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, tree_leaves(result)))
        return result

    def repeat(self) -> None:
        """Start the operations again. Tensors that they made are made anew, all others are used as they are."""
        made: dict[int, Any] = {}
        for func, args, kwargs, results in self.operations:
            now = tree_map_only(Tensor, lambda tensor: made.get(id(tensor), tensor), (args, kwargs))
            for before, after in zip(results, tree_leaves(func(*now[0], **now[1])), strict=True):
                made[id(before)] = after


class CpuRecorder:
    """As `CudaGraphs`."""

    def warm_up(self, run: Callable[[], None]) -> None:
        run()

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        """Unlike a graph's, the function's operations are computed, too."""
        with _Operations() as operations:
            run()
        assert len(operations.operations) > 1

        def repeat() -> None:
            with torch.no_grad():
                operations.repeat()

        return repeat
