"""What training costs: exact parameter counts, counted operations, and the paper's estimate from time and hardware.

A multiplication and an addition are two operations, as everywhere in the field and in torch's FlopCounterMode.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from nmt.config import InputError, ModelSettings

if TYPE_CHECKING:
    import torch


def parameters(model: ModelSettings, vocabulary: int, target_vocabulary: int | None = None) -> int:
    """Trainable numbers of the Transformer, by default with one embedding of `vocabulary` rows for all (3.4).

    `sharing` adds tables of `target_vocabulary` rows, or of `vocabulary` where there is none. Layer norms and the
    feed-forward network's biases always count; the attention's biases with `projection_biases`; with
    `positions: learned`, a table of positions for each embedding.
    """
    d, heads_k, heads_v = model.d_model, model.h * model.d_k, model.h * model.d_v
    attention = d * (2 * heads_k + heads_v) + heads_v * d
    if model.projection_biases:
        attention += 2 * heads_k + heads_v + d
    feed_forward = 2 * d * model.d_ff + model.d_ff + d
    norm = 2 * d
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    positions = model.max_positions * d if model.positions == "learned" else 0
    own, embeddings = {"all": (0, 1), "output": (1, 2), "none": (2, 2)}[model.sharing]
    tables = vocabulary + own * (target_vocabulary or vocabulary)
    return tables * d + model.N * (encoder + decoder) + embeddings * positions


@dataclass(frozen=True)
class LengthSums:
    """Sums over sentence pairs of what the operations depend on; lengths in subwords, EOS included, padding not."""

    pairs: int
    source: int
    target: int
    source_squared: int
    target_squared: int
    product: int

    def __add__(self, other: LengthSums) -> LengthSums:
        return LengthSums(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(LengthSums)))

    @classmethod
    def zero(cls) -> LengthSums:
        """Those of no pair."""
        return cls(0, 0, 0, 0, 0, 0)

    @classmethod
    def of(cls, source: int, target: int) -> LengthSums:
        """Those of one pair with `source` and `target` subwords."""
        return cls(1, source, target, source * source, target * target, source * target)


def training_flops(model: ModelSettings, vocabulary: int, sums: LengthSums) -> int:
    """Operations of all matrix products of forward and backward over the pairs summed in `sums`, without padding.

    The backward pass is twice the forward: each product has two gradients. The decoder's self-attention counts as the
    full square, which plain products compute; element-wise work is left out, as FlopCounterMode does. `vocabulary` is
    the target's.
    """
    d, heads_k, heads_v = model.d_model, model.h * model.d_k, model.h * model.d_v
    queries_and_output = 2 * d * (heads_k + heads_v)
    keys_and_values = 2 * d * (heads_k + heads_v)
    feed_forward = 4 * d * model.d_ff
    scores_and_sums = 2 * (heads_k + heads_v)
    encoder = (
        queries_and_output + keys_and_values + feed_forward
    ) * sums.source + scores_and_sums * sums.source_squared
    decoder = (
        (2 * queries_and_output + keys_and_values + feed_forward) * sums.target
        + keys_and_values * sums.source
        + scores_and_sums * (sums.target_squared + sums.product)
    )
    logits = 2 * d * vocabulary * sums.target
    return 3 * (model.N * (encoder + decoder) + logits)


@dataclass(frozen=True)
class Hardware:
    """A processor's speed in operations a second, on dense matrices."""

    name: str
    sustained: float
    """Sustained single precision, as the paper's cost estimate takes it."""
    float32: float | None
    """Peak single precision, without TF32."""
    bfloat16: float | None
    """Peak of the matrix units in bfloat16; None where there are none."""
    source: str

    def peak(self, precision: str) -> float | None:
        """The peak for `float32` or `bfloat16`, where it is known."""
        return self.bfloat16 if precision == "bfloat16" else self.float32


_PAPER = "the paper, section 5.2 and footnote 5"
_SHEET = "NVIDIA's data sheet; sustained taken as 0.9 of peak, as the paper's 9.5 are of a P100's 10.6"


def _from_sheet(name: str, float32: float, bfloat16: float | None) -> Hardware:
    """Peaks in TFLOPS, without sparsity."""
    return Hardware(name, 0.9 * float32 * 1e12, float32 * 1e12, bfloat16 * 1e12 if bfloat16 else None, _SHEET)


HARDWARE = (
    Hardware("K80", 2.8e12, None, None, _PAPER),
    Hardware("K40", 3.7e12, None, None, _PAPER),
    Hardware("M40", 6.0e12, None, None, _PAPER),
    Hardware("P100", 9.5e12, 10.6e12, None, _PAPER),
    _from_sheet("V100", 15.7, None),
    _from_sheet("T4", 8.1, None),
    _from_sheet("A100", 19.5, 312.0),
    _from_sheet("A10G", 35.0, 70.0),
    _from_sheet("A10", 31.2, 125.0),
    _from_sheet("A40", 37.4, 149.7),
    _from_sheet("L40S", 91.6, 362.0),
    _from_sheet("L4", 30.3, 121.0),
    _from_sheet("RTX 3090", 35.6, 71.0),
    _from_sheet("RTX 4090", 82.6, 165.2),
    _from_sheet("H100 PCIe", 51.2, 756.0),
    _from_sheet("H100 NVL", 60.0, 835.0),
    _from_sheet("H100", 66.9, 989.4),
    _from_sheet("H200", 66.9, 989.4),
    _from_sheet("B200", 75.0, 2250.0),
)
"""The paper's four GPUs, and later ones. A longer name that holds a shorter one stands before it."""


def hardware(device: str) -> Hardware | None:
    """The entry for a device as torch names it (`NVIDIA H100 80GB HBM3`), or None where none is on record."""
    words = device.replace("-", " ").replace("_", " ").split()
    for entry in HARDWARE:
        if set(entry.name.split()) <= set(words):
            return entry
    return None


def paper_cost(seconds: float, devices: int, sustained_flops: float) -> float:
    """The paper's estimate: training seconds x devices x sustained single-precision operations a second of one."""
    if seconds < 0 or devices < 1 or sustained_flops <= 0:
        raise InputError(
            f"{seconds} seconds on {devices} devices at {sustained_flops} operations a second is no training: "
            "seconds must be 0 or more, devices at least 1 and the speed positive"
        )
    return seconds * devices * sustained_flops


def utilisation(flops: float, seconds: float, devices: int, peak: float) -> float:
    """Model FLOPs utilisation: counted operations over what `devices` could have done at their peak, from 0 to 1."""
    return flops / (seconds * devices * peak)


def sustained(device: str) -> float:
    """Sustained single precision of a device as torch names it, or of the CPU (`cpu`): on record or measured here."""
    known = hardware(device)
    return known.sustained if known is not None else measure("cpu" if device == "cpu" else "cuda")


def devices(device: str, processes: int) -> int:
    """How many devices `processes` train on: a GPU each, while those on a machine's CPU share it."""
    return 1 if device == "cpu" else processes


def measure(kind: str = "cpu", seconds: float = 0.5, dtype: torch.dtype | None = None) -> float:
    """Operations a second of this machine's CPU (`cpu`, all of it) or GPU (`cuda`), single precision by default.

    The best of matrix products repeated for about `seconds`.
    """
    import torch

    size = 1024 if kind == "cpu" else 8192
    a, b = (torch.rand(size, size, device=kind, dtype=dtype) for _ in range(2))
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        torch.mm(a, b)
        if kind == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        best = min(best, now - start)
        if now > end:
            return float(2 * size**3 / best)
