"""Linear layers. On CPUs: oneDNN's products where they are faster than torch's own, which are MKL's.

MKL chooses its code by the processor's maker and runs code for AVX2 on others' than Intel's. oneDNN goes by the
instructions, and torch has it, too.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, cast

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


def has_fast_onednn() -> bool:
    """Return whether oneDNN's products are the fastest here: on x86 processors that are not Intel's.

    By vendor, not by measurement: timings vary between runs, and the choice changes the bits of the weights.
    """
    exists = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return exists and cpuinfo("vendor_id") not in {"", "GenuineIntel"}


ONEDNN = has_fast_onednn()
"""Whether products in float32 on the CPU that are not portable are oneDNN's; else they are torch's own."""
AVX512 = torch.backends.cpu.get_cpu_capability() == "AVX512"


def has_own_backward(x: Tensor) -> bool:
    """Return whether gradients are computed here and in `nmt.fused`: on CPUs, in float32 and under autocast.

    Not in portable arithmetic, which replaces torch's functions.
    """
    known = x.dtype == torch.float32 or (x.dtype == torch.bfloat16 and torch.is_autocast_enabled("cpu"))
    return x.is_cpu and known and not has_torch_function((x,))


def by_onednn(x: Tensor) -> bool:
    # Portable arithmetic replaces torch's functions. Under autocast products are oneDNN's already, in bfloat16.
    ours = ONEDNN and x.is_cpu and x.dtype == torch.float32 and x.numel() > 0
    return ours and not torch.is_autocast_enabled("cpu") and not has_torch_function((x,))


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None, then: str = "none") -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, then, [], "")
    return product


class _Linears(torch.autograd.Function):
    """x W^T + b for each W and b, or max(0, x W^T + b); under autocast in its type."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, relu: bool, *parts: Tensor | None) -> tuple[Tensor, ...]:
        ctx.dtype = x.dtype
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
            x, parts = x.to(dtype), tuple(part if part is None else part.to(dtype) for part in parts)
        ys = tuple(_product(x, cast("Tensor", W), b, relu) for W, b in zip(parts[::2], parts[1::2], strict=True))
        ctx.save_for_backward(x, *parts[::2], *(ys if relu else ()))
        return ys

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        x, *saved = ctx.saved_tensors
        weights, ys = saved[: len(upstream)], saved[len(upstream) :]
        dx: Tensor | None = None
        gradients: list[Tensor | None] = []
        for number, (dy, W) in enumerate(zip(upstream, weights, strict=True)):
            rows = dy.flatten(0, -2).contiguous()
            if ys:
                rows = torch.ops.aten.threshold_backward(rows, ys[number].flatten(0, -2), 0)
            if ctx.needs_input_grad[0]:
                part = matmul(rows, W).view_as(x)
                dx = part.to(ctx.dtype) if dx is None else dx.add_(part)
            gradients.append(matmul(rows.t(), x.flatten(0, -2)).float())
            gradients.append(rows.sum(0).float() if ctx.needs_input_grad[3 + 2 * number] else None)
        return dx, None, *gradients


def _product(x: Tensor, W: Tensor, b: Tensor | None, relu: bool) -> Tensor:
    if by_onednn(x):
        return _onednn(x, W, b, "relu" if relu else "none")
    y = F.linear(x, W, b)
    return torch.relu_(y) if relu else y


def linear(
    x: Float[Tensor, "*rows in"], weight: Float[Tensor, "out in"], bias: Tensor | None = None, *, relu: bool = False
) -> Float[Tensor, "*rows out"]:
    """Return x W^T + b, or max(0, x W^T + b)."""
    if has_own_backward(x):
        ys: tuple[Tensor, ...] = _Linears.apply(x, relu, weight, bias)
        return ys[0]
    y = F.linear(x, weight, bias)
    return F.relu(y) if relu else y


def linears(x: Float[Tensor, "*rows in"], parts: Sequence[nn.Module]) -> Sequence[Float[Tensor, "*rows _out"]]:
    """Return what each layer gives for `x`; on GPUs by one product."""
    layers = [part for part in parts if isinstance(part, Linear)]
    known = len(layers) == len(parts)  # Search has others in their place.
    if known and has_own_backward(x):
        tensors = (tensor for layer in layers for tensor in (layer.weight, layer.bias))
        ys: tuple[Tensor, ...] = _Linears.apply(x, False, *tensors)
        return ys
    if known and not x.is_cpu:
        # GPUs are faster with few large products, CPUs are not.
        weight, bias = torch.cat([layer.weight for layer in layers]), None
        if layers[0].bias is not None:
            bias = torch.cat([layer.bias for layer in layers])
        return list(F.linear(x, weight, bias).split([layer.out_features for layer in layers], dim=-1))
    return [part(x) for part in parts]


def _onednn_multiplies(left: Tensor) -> bool:
    # Weights' gradients are products of transposed matrices. Without AVX-512 oneDNN takes longer than MKL for these, up
    # to three times for the vocabulary's table.
    return by_onednn(left) and (AVX512 or left.is_contiguous())


def matmul(left: Float[Tensor, "rows terms"], right: Float[Tensor, "terms columns"]) -> Float[Tensor, "rows columns"]:
    """Return the product of two matrices. No gradients flow through it."""
    if not _onednn_multiplies(left):
        return left @ right
    if left.shape[0] > right.shape[1] and not left.is_contiguous():
        # Of a transposed matrix oneDNN is faster with few rows.
        return _onednn(right.t(), left).t().contiguous()
    return _onednn(left, right.t())


def add_matmul_(total: Tensor, left: Float[Tensor, "rows terms"], right: Float[Tensor, "terms columns"]) -> Tensor:
    """Add the product of two matrices to `total`."""
    return total.add_(matmul(left, right)) if _onednn_multiplies(left) else total.addmm_(left, right)


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
