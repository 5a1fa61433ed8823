"""Products of matrices on CPUs: oneDNN's where they are faster than torch's own, which are MKL's.

MKL chooses its code by the processor's maker and runs code for AVX2 on others' than Intel's. oneDNN goes by the
instructions, and torch has it, too.
"""

from __future__ import annotations

import os
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import has_torch_function

from nmt.common.cpu import cpuinfo
from nmt.common.shapes import Float

for _cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    # oneDNN and torch keep code for each number of rows: with their 1,024 entries, memory grows by 1.5 GB. They read
    # this at the first product.
    os.environ.setdefault(_cache, "256")

Library = Literal["torch", "onednn"]
"""`torch`: whatever torch's own products are."""


def fastest() -> Library:
    """Return the library for this machine: oneDNN on x86 processors that are not Intel's.

    By the maker: a measurement beside other programs comes out one way today and the other way tomorrow, and the bits
    of the weights with it.
    """
    exists = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return "onednn" if exists and cpuinfo("vendor_id") not in {"", "GenuineIntel"} else "torch"


chosen: Library = fastest()
"""This process'. Torch's whatever it is: in other precisions than float32, on other devices, in portable arithmetic."""


def by_onednn(x: Tensor) -> bool:
    # Portable arithmetic replaces torch's functions. Under autocast products are oneDNN's already, in bfloat16.
    ours = chosen == "onednn" and x.is_cpu and x.dtype == torch.float32 and x.numel() > 0
    return ours and not torch.is_autocast_enabled("cpu") and not has_torch_function((x,))


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None, then: str = "none") -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, then, [], "")
    return product


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
        y = _onednn(x, weight, bias, "relu" if relu else "none")
        ctx.save_for_backward(x, weight, y if relu else None)
        return y

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None]:
        x, weight, y = ctx.saved_tensors
        dy = upstream[0].contiguous()
        if y is not None:
            dy = torch.ops.aten.threshold_backward(dy, y, 0)
        rows = dy.flatten(0, -2)
        dx = _onednn(dy, weight.t()) if ctx.needs_input_grad[0] else None
        return dx, matmul(rows.t(), x.flatten(0, -2)), rows.sum(0) if ctx.needs_input_grad[2] else None, None


def linear(
    x: Float[Tensor, "*rows in"], weight: Float[Tensor, "out in"], bias: Tensor | None = None, *, relu: bool = False
) -> Float[Tensor, "*rows out"]:
    """Return x W^T + b, or max(0, x W^T + b)."""
    if by_onednn(x):
        result: Tensor = _Linear.apply(x, weight, bias, relu)
        return result
    y = F.linear(x, weight, bias)
    return F.relu(y) if relu else y


def matmul(left: Float[Tensor, "rows terms"], right: Float[Tensor, "terms columns"]) -> Float[Tensor, "rows columns"]:
    """Return the product of two matrices. No gradients flow through it."""
    if not by_onednn(left):
        return left @ right
    if left.shape[0] > right.shape[1] and not left.is_contiguous():
        # Of a transposed matrix oneDNN is faster with few rows.
        return _onednn(right.t(), left).t().contiguous()
    return _onednn(left, right.t())


def add_matmul_(total: Tensor, left: Float[Tensor, "rows terms"], right: Float[Tensor, "terms columns"]) -> Tensor:
    """Add the product of two matrices to `total`."""
    return total.add_(matmul(left, right)) if by_onednn(left) else total.addmm_(left, right)


class Linear(nn.Linear):
    """x W^T + b."""

    def forward(self, x: Float[Tensor, "*rows in"], *, relu: bool = False) -> Float[Tensor, "*rows out"]:
        return linear(x, self.weight, self.bias, relu=relu)


class Fixed(nn.Module):
    """x W^T + b with a copy of weights that do not change, in the order that is fastest for a few rows."""

    def __init__(self, weight: Float[Tensor, "out in"], bias: Float[Tensor, "out"] | None) -> None:
        super().__init__()
        self.packed, self.bias = by_onednn(weight), bias
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight) if self.packed else weight.t().contiguous()

    def forward(self, x: Float[Tensor, "*rows in"], *, relu: bool = False) -> Float[Tensor, "*rows out"]:
        if self.packed:
            return _onednn(x, self.weight, self.bias, "relu" if relu else "none")
        product = x @ self.weight
        y = product if self.bias is None else product + self.bias
        return F.relu(y) if relu else y
