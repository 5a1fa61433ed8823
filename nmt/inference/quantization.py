"""Linear layers with 8-bit weights, for faster translation on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nmt.common.shapes import Float
from nmt.errors import InputError
from nmt.model import Transformer

_LEVELS = 127  # the largest magnitude of an 8-bit integer, with a range symmetric about 0


class Int8Linear(nn.Module):
    """x W^T + b with W and x as 8-bit integers: one scale per row of W and one per row of x; the product is oneDNN's.

    The scale of a row of x depends on that row alone, so a sentence's translation does not depend on its batch.
    """

    def __init__(self, weight: Float[Tensor, "out in"], bias: Float[Tensor, "out"] | None) -> None:
        super().__init__()
        self.out_features = weight.shape[0]
        self.bias = bias
        # Of x. Without VNNI, pairs of products are added in 16 bits and would overflow.
        self.levels = _LEVELS if torch.cpu._is_vnni_supported() else _LEVELS // 2
        self.scales = (weight.abs().amax(1) / _LEVELS).clamp_min(torch.finfo(torch.float32).tiny)
        self.rounded = (weight / self.scales[:, None]).round().to(torch.int8)
        self._zeros = torch.zeros(len(weight), dtype=torch.int32)
        self._packed = torch.ops.onednn.qlinear_prepack(self.rounded, None)

    @property
    def weight(self) -> Float[Tensor, "out in"]:
        return self.rounded * self.scales[:, None]

    def forward(self, x: Float[Tensor, "*rows in"], *, relu: bool = False) -> Float[Tensor, "*rows out"]:
        # Large tensors are written over where possible: fetching new memory takes longer than the arithmetic.
        scaled = x.abs()
        steps = scaled.amax(-1, keepdim=True).clamp_min_(torch.finfo(torch.float32).tiny).div_(self.levels)
        torch.mul(x, steps.reciprocal(), out=scaled).round_()
        # oneDNN is fast for unsigned x alone, so zero is moved; torch casts to int8 seven times as fast as to uint8.
        zero = self.levels + 1
        unsigned = scaled.to(torch.int8).view(torch.uint8).add_(zero)
        inputs, weights = (unsigned, 1.0, zero), (self._packed, self.scales, self._zeros, None)
        product: Tensor = torch.ops.onednn.qlinear_pointwise(*inputs, *weights, 1.0, 0, torch.float32, "none", [], "")
        y = product.mul_(steps) if self.bias is None else torch.addcmul(self.bias, product, steps, out=product)
        return y.relu_() if relu else y


def quantize(model: Transformer) -> None:
    """Replace every linear layer of a model on the CPU, in place; embeddings and LayerNorm stay in float32.

    Raises InputError if the model is not in float32 on a CPU, or torch has no 8-bit products for this processor.
    """
    table = model.output_table
    if table.device.type != "cpu" or table.dtype != torch.float32:
        raise InputError(
            f"8-bit weights are made from float32 on a CPU, but the model is in {table.dtype} on {table.device}: "
            "give --device cpu and --precision float32, or leave out --quantization"
        )
    if not torch.cpu._is_avx2_supported():
        raise InputError("torch has fast 8-bit products for x86 processors with AVX2 alone: leave out --quantization")
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            model.set_submodule(name, Int8Linear(module.weight.detach(), module.bias))


def is_quantized(model: Transformer) -> bool:
    return any(isinstance(module, Int8Linear) for module in model.modules())
