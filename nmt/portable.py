"""Arithmetic whose bits follow from its operands alone: on any processor, any number of threads, any library.

While `Portable` is active it takes the place of torch's functions that add in an order of their own, or that round as a
library likes. What it is made of rounds the same everywhere (IEEE 754): +, -, *, / and sqrt of single numbers, and sums
of multiples of a power of two that float64 holds exactly, in whatever order they are added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.overrides import TorchFunctionMode, wrap_torch_function

Arithmetic = Literal["ordinary", "portable"]
Dims = int | tuple[int, ...]

BITS = 22
"""A float32 number on a grid is at most 2^BITS of its steps. Rounding adds 3 * 2^BITS steps and subtracts them again: a
sum of 24 bits, as many as a float32 has."""
LONGEST = 4096  # products are summed exactly over at most so many terms; sums of more are added in order
TINY = 2.0**-100  # added to a number and subtracted again, it leaves 0 of numbers below about 2^-24 of it
FORMATS = {torch.float32: (torch.int32, 23, 0x7F800000), torch.float64: (torch.int64, 52, 0x7FF0000000000000)}
"""The integers of the same size, the bits of the mantissa, the mask of the exponent."""


def on_grid(x: Tensor, dim: Dims, bits: int) -> Tensor:
    """Return `x` rounded to multiples of powers of two, one for all numbers along `dim`: at most 2^bits of it each."""
    integer, mantissa, exponent = FORMATS[x.dtype]
    largest = torch.maximum(x.amax(dim, keepdim=True), x.amin(dim, keepdim=True).neg_())
    power = largest.view(integer).bitwise_and_(exponent).view(x.dtype)
    shift = power.mul_(1.5 * 2.0 ** (mantissa + 1 - bits)).clamp_min_(TINY)
    # The sum's last bit is the grid's step; it rounds half to even.
    return (x + shift).sub_(shift)


def on_one_grid(x: Tensor, longest: int) -> Tensor:
    """Return float32 numbers rounded to one grid, in float64: any products of `longest` terms have exact sums."""
    power = 2.0 ** math.frexp(max(float(x.amax()), -float(x.amin())))[1]
    shift = max(1.5 * 2.0 ** (23 - exact_bits(longest)) * power, TINY)
    return (x + shift).sub_(shift).double()


def exact_bits(terms: int) -> int:
    """Return how many bits numbers may have so that their products are at most 2^53 steps, and their sum, too."""
    return min(BITS, (53 - (terms - 1).bit_length()) // 2)


def exact_sum(x: Tensor, dim: Dims) -> Tensor:
    """Return sums in float64 that are exact but for the rounding of the numbers to a grid."""
    mantissa = FORMATS[x.dtype][1]
    terms = math.prod(x.shape[d] for d in ((dim,) if isinstance(dim, int) else dim))
    return on_grid(x, dim, min(mantissa - 1, 53 - (terms - 1).bit_length())).sum(dim, dtype=torch.float64)


def multiply(left: Tensor, right: Tensor) -> Tensor:
    """Return the product of matrices on grids, in float32."""
    # Both are the same. MKL is faster with few rows, but transposing a long result takes longer than it gains.
    few = right.shape[-1] <= min(left.shape[-2:])
    product = (right.mT @ left.mT).mT if few else left @ right
    return product.to(torch.float32, memory_format=torch.contiguous_format)


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return the matrix product, in float32: exact but for the rounding of rows and columns to grids, and of sums."""
    parts = zip(left.split(LONGEST, dim=-1), right.split(LONGEST, dim=-2), strict=True)
    grids = ((on_grid(a, -1, bits := exact_bits(a.shape[-1])), on_grid(b, -2, bits)) for a, b in parts)
    return reduce(Tensor.add_, (multiply(a.double(), b.double()) for a, b in grids))


class _Linear(Function):
    """The product of rows with the rows of a weight, plus a bias."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.longest = max(*x.shape[-2:], weight.shape[-2])
        a, b = on_one_grid(x, ctx.longest), on_one_grid(weight, ctx.longest)
        ctx.save_for_backward(a, b)
        y = multiply(a, b.mT)
        return y if bias is None else y.add_(bias)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        a, b = ctx.saved_tensors
        d = on_one_grid(upstream[0], ctx.longest)
        return multiply(d, b), multiply(d.mT, a), d.sum(0).float() if ctx.needs_input_grad[2] else None


class _Embedding(Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.rows = len(table)
        return table[ids]

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[None, Tensor]:
        (ids,) = ctx.saved_tensors
        different, numbers = ids.flatten().unique(return_inverse=True)
        dy = on_grid(upstream[0].flatten(0, -2), 0, BITS).double()
        sums = dy.new_zeros(len(different), dy.shape[1]).index_add_(0, numbers, dy).float()
        return None, sums.new_zeros(ctx.rows, dy.shape[1]).index_copy_(0, different, sums)


def root_(x: Tensor) -> Tensor:
    """Take the square root in place, correctly rounded: torch's is MKL's, whose last bit is wrong in many numbers."""
    np.sqrt(x.numpy(), out=x.numpy())
    return x


def exp(x: Tensor) -> Tensor:
    """Return exp of each number: 2^n e^r with |r| <= log(2) / 2. Numbers below -86 (float64: -700) count as these."""
    integer, mantissa, _ = FORMATS[x.dtype]
    single = x.dtype == torch.float32
    # n times the first part of log(2) is exact.
    high = 0.693145751953125 if single else 0.6931471803691238
    low = 1.4286068203094172e-06 if single else 1.9082149292705877e-10
    n = torch.clamp_min(x, -86.0 if single else -700.0)
    r = n.clone()
    n.mul_(1.4426950408889634).round_()
    r.sub_(n * high).sub_(n * low)
    degree = 7 if single else 13
    y = r * (1 / math.factorial(degree))
    for k in range(degree - 1, 0, -1):
        y.add_(1 / math.factorial(k)).mul_(r)
    y.add_(1.0).view(integer).add_(n.to(integer).bitwise_left_shift_(mantissa))
    return y


def log(x: Tensor) -> Tensor:
    """Return the logarithm of positive float64 numbers: e log(2) + 2 artanh((m - 1) / (m + 1)), x = m 2^e."""
    m, e = torch.frexp(x)
    small = m < math.sqrt(0.5)
    m, e = torch.where(small, m * 2, m), torch.where(small, e - 1, e).double()
    f = (m - 1) / (m + 1)
    square = f * f
    y = torch.full_like(x, 1 / 23)
    for k in range(21, 0, -2):
        y.mul_(square).add_(1 / k)
    return y.mul_(f).mul_(2).add_(e * 1.9082149292705877e-10).add_(e * 0.6931471803691238)


def sine(x: Tensor, quarters: int = 0) -> Tensor:
    """Return sin(x + quarters pi / 2) of float64 numbers of a few thousand at most."""
    n = (x * (2 / math.pi)).round_()
    # n times each of the first two parts of pi / 2 is exact.
    r = x - n * 1.5707963267341256 - n * 6.077100506303966e-11 - n * 2.0222662487959506e-21
    quarter = (n + quarters).remainder_(4.0)
    odd, negative = (quarter == 1) | (quarter == 3), quarter >= 2
    square, y = r * r, [torch.zeros_like(r), torch.zeros_like(r)]
    for k in range(19, -1, -1):
        y[k % 2].mul_(square if k < 18 else 0.0).add_((-1) ** (k // 2) / math.factorial(k))
    magnitude = torch.where(odd, y[0], y[1] * r)
    return torch.where(negative, -magnitude, magnitude)


class _Softmax(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        # The largest is 1, so the grid needs no search.
        e = exp(x - x.amax(-1, keepdim=True)).add_(3.0).sub_(3.0)
        p = e / e.sum(-1, keepdim=True, dtype=torch.float64).float()
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Tensor:
        (p,) = ctx.saved_tensors
        dx: Tensor = upstream[0] * p
        return dx.sub_(p * exact_sum(dx, -1).float().unsqueeze(-1))


class _LayerNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, bias: Tensor, epsilon: float) -> Tensor:
        share = 1 / x.shape[-1]
        centred = x - exact_sum(x, -1).mul_(share).float().unsqueeze(-1)
        variance = exact_sum(centred * centred, -1).mul_(share)
        scale = (1 / root_(variance.add_(epsilon))).float().unsqueeze(-1)
        normal = centred.mul_(scale)
        ctx.save_for_backward(normal, scale, gain)
        return (normal * gain).add_(bias)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        normal, scale, gain = ctx.saved_tensors
        dy, share = upstream[0], 1 / len(gain)
        d_normal = dy * gain
        means = [exact_sum(t, -1).mul_(share).float().unsqueeze(-1) for t in (d_normal, d_normal * normal)]
        dx = d_normal.sub_(means[0]).sub_(normal * means[1]).mul_(scale)
        others = tuple(range(dy.dim() - 1))
        return dx, exact_sum(dy * normal, others).float(), exact_sum(dy, others).float(), None


def _log_softmax(x: Tensor, dim: int, out: Tensor) -> Tensor:
    z = x - x.amax(-1, keepdim=True)
    return torch.sub(z, log(_total(exp(z))).float().unsqueeze(-1), out=out)


def _total(e: Tensor) -> Tensor:
    """Return the sums of rows whose largest number is 1, so that the grid needs no search, in float64."""
    shift = 3 * 2.0 ** ((e.shape[-1] - 1).bit_length() - 2)
    return e.double().add_(shift).sub_(shift).sum(-1)


@wrap_torch_function(lambda logits, *_: (logits,))
def block_loss(
    logits: Tensor, label: Tensor, eps_ls: float, needs_gradient: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Do what `block_loss` in loss.py does, with one exp of every logit."""
    others = eps_ls / (logits.shape[1] - 1)
    z = logits - logits.amax(1, keepdim=True)
    picked, summed = z.gather(1, label).double().squeeze(1), exact_sum(z, 1)
    e = exp(z)
    total = _total(e)
    log_total = log(total)
    log_p = exact_sum(picked - log_total, 0)
    log_p_all = exact_sum(summed - log_total * logits.shape[1], 0)
    smoothed = -((1 - eps_ls - others) * log_p + others * log_p_all)
    if not needs_gradient:
        return smoothed, -log_p, None
    gradient = e.div_(total.float().unsqueeze(1)).sub_(others)
    gradient.scatter_add_(1, label, gradient.new_full(label.shape, -(1 - eps_ls - others)))
    return smoothed, -log_p, gradient


def _uniform(size: Sequence[int]) -> Tensor:
    """Return float64 numbers of [0, 1): torch draws integers alike everywhere, and real numbers not."""
    drawn = torch.empty(size, dtype=torch.int64).random_(-(2**63), None)
    return drawn.bitwise_right_shift_(11).double().mul_(2.0**-53).add_(0.5)


def _normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: None = None) -> Tensor:
    """Box and Muller's transform."""
    radius = root_(log(1 - _uniform(tensor.shape)).mul_(-2))
    # The deviation is a power, whose last digit in float64 depends on the C library.
    return tensor.detach().copy_(radius.mul_(sine(_uniform(tensor.shape).mul_(2 * math.pi)))).mul_(std).add_(mean)


def norm(x: Tensor, order: float = 2.0) -> Tensor:
    x = x.detach().flatten().double()
    return root_(exact_sum(x * x, 0)).float()


def adam(
    parameters: Sequence[Tensor], gradients: Sequence[Tensor], first: Sequence[Tensor], second: Sequence[Tensor],
    maxima: Sequence[Tensor], steps: Sequence[Tensor], *, found_inf: Tensor, **settings: Any,
) -> None:  # fmt: skip
    """Step as Adam (Kingma and Ba, Algorithm 1) unless `found_inf`; the steps are counted by torch."""
    if found_inf:
        return
    t, lr, beta1, beta2 = int(steps[0]), *(settings[name] for name in ("lr", "beta1", "beta2"))
    rate, correction = lr / (1 - math.prod([beta1] * t)), 1 / (1 - math.prod([beta2] * t))
    for tensors in zip(parameters, gradients, first, second, strict=True):
        # Parts stay in the caches.
        for p, g, m, v in zip(*(tensor.reshape(-1).split(2**16) for tensor in tensors), strict=True):
            m.mul_(beta1).add_(g * (1 - beta1)).add_(TINY).sub_(TINY)
            v.mul_(beta2).add_((g * g).mul_(1 - beta2)).add_(TINY).sub_(TINY)
            p.sub_((m * rate).div_(root_(v * correction).add_(settings["eps"])))


def _sum(x: Tensor, dim: Dims | None = None, dtype: torch.dtype | None = None) -> Tensor:
    dims = tuple(range(x.dim())) if dim is None else dim
    return exact_sum(x, dims).to(dtype or x.dtype) if x.is_floating_point() else x.sum(dims)


def _add(x: Tensor, y: Any, **options: Any) -> Tensor:
    if isinstance(y, Tensor) and y.requires_grad and y.shape != x.shape:
        raise NotImplementedError(f"add of {tuple(y.shape)} to {tuple(x.shape)}: its gradient would be torch's sum")
    return torch.add(x, y, **options)


def _matmul(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    result: Tensor = _Linear.apply(left, right.mT, None) if torch.is_grad_enabled() else product(left, right)
    return result if out is None else out.copy_(result)


OWN: dict[str, Callable[..., Any]] = {
    "linear": lambda x, weight, bias=None: _Linear.apply(x.flatten(0, -2), weight, bias).unflatten(0, x.shape[:-1]),
    "matmul": _matmul, "mm": _matmul, "spmm": _matmul,
    "addmm_": lambda x, left, right: x.add_(product(left, right)),
    "embedding": lambda ids, table, **_: _Embedding.apply(ids, table),
    "softmax": lambda x, dim: _Softmax.apply(x), "log_softmax": _log_softmax,
    "layer_norm": lambda x, shape, weight, bias, eps: _LayerNorm.apply(x, weight, bias, eps),
    "add": _add, "sum": _sum, "sin": sine, "cos": lambda x: sine(x, 1),
    "div": lambda x, y: x / y if isinstance(y, Tensor) else x * (1 / y),
    "__rpow__": lambda x, base: exp(x * log(torch.tensor(base, dtype=x.dtype))),
    "pow": lambda x, power: exp(power * log(x.double())),
    "uniform_": lambda tensor, a=0, b=1, generator=None: tensor.detach().copy_(_uniform(tensor.shape) * (b - a) + a),
    "normal_": _normal_, "kaiming_uniform_": lambda tensor, *_, **__: tensor,
    "linalg_vector_norm": norm, "_foreach_norm": lambda tensors, order: [norm(tensor, order) for tensor in tensors],
    "_fused_adam_": adam, "block_loss": block_loss,
}  # fmt: skip
EXACT = {
    *OWN, "__float__", "__get__", "__getitem__", "__invert__", "__len__", "__set__", "__setitem__", "_foreach_add_",
    "_foreach_sub_", "_has_compatible_shallow_copy_type", "_parse_to", "_record_function_enter_new",
    "_record_function_exit._RecordFunction", "_set_grad_enabled", "add_", "all", "all_reduce", "any",
    "arange", "argmax", "cat", "chunk", "copy_", "cpu", "detach", "device", "dim", "empty", "empty_like", "fill_",
    "flatten", "float", "ge", "grad", "index_select", "irecv", "is_complex", "is_floating_point", "isend",
    "isfinite", "masked_fill", "mul", "ne", "new_zeros", "numel", "numpy", "ones", "random_", "relu", "size", "split",
    "stack", "to", "tolist", "transpose", "tril", "unbind", "unflatten", "view", "zero_", "zeros", "zeros_like",
}  # fmt: skip
"""What moves, selects or compares numbers, or rounds each by itself, also where gradients go back."""
WITHOUT_GRADIENTS = {
    "__bool__", "__eq__", "__floordiv__", "__or__", "amax", "clone", "contiguous", "expand", "fill_diagonal_", "full",
    "gather", "isnan", "le", "masked_fill_", "new_empty", "new_full", "pad", "remainder", "reshape", "sub", "t",
    "tensor", "topk",
}  # fmt: skip
"""What search needs besides: the gradients of some are sums."""


class Portable(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name not in EXACT and (torch.is_grad_enabled() or name not in WITHOUT_GRADIENTS):
            raise NotImplementedError(
                f"{name} may give other bits elsewhere: add it to OWN, EXACT or WITHOUT_GRADIENTS in nmt/portable.py"
            )
        return OWN.get(name, func)(*args, **(kwargs or {}))


def arithmetic(kind: Arithmetic) -> AbstractContextManager[object]:
    """Return what makes torch compute as `training.arithmetic` asks while it is entered."""
    return Portable() if kind == "portable" else nullcontext()
