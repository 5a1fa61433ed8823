"""The cost of training: exact parameter counts, counted operations, and the paper's estimate from time and hardware.

A multiplication and an addition are two operations, as in torch's FlopCounterMode.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from nmt.model_settings import ModelSettings

if TYPE_CHECKING:
    import torch


def parameters(model: ModelSettings, vocabulary: int, target_vocabulary: int | None = None) -> int:
    """Return the number of trainable parameters, by default with one embedding of `vocabulary` rows for all (3.4).

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
    """Sums over sentence pairs that determine the operations; lengths in subwords, EOS included, without padding."""

    pairs: int = 0
    source: int = 0
    target: int = 0
    source_squared: int = 0
    target_squared: int = 0
    product: int = 0

    def __add__(self, other: LengthSums) -> LengthSums:
        return LengthSums(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(LengthSums)))

    @classmethod
    def of(cls, source: int, target: int) -> LengthSums:
        return cls(1, source, target, source * source, target * target, source * target)


def training_flops(model: ModelSettings, vocabulary: int, sums: LengthSums) -> int:
    """Return the operations of all matrix products of forward and backward passes over pairs, without padding.

    The backward pass has twice the forward's: each product has two gradients. The decoder's self-attention counts as
    the full square, which plain products compute. Element-wise operations are not counted, as in FlopCounterMode.
    `vocabulary` is the target's.
    """
    d, heads_k, heads_v = model.d_model, model.h * model.d_k, model.h * model.d_v
    # Queries and output; keys and values have as many.
    projections = 2 * d * (heads_k + heads_v)
    feed_forward = 4 * d * model.d_ff
    weights_and_sums = 2 * (heads_k + heads_v)
    encoder = (2 * projections + feed_forward) * sums.source + weights_and_sums * sums.source_squared
    decoder = (3 * projections + feed_forward) * sums.target + projections * sums.source
    decoder += weights_and_sums * (sums.target_squared + sums.product)
    logits = 2 * d * vocabulary * sums.target
    return 3 * (model.N * (encoder + decoder) + logits)


@dataclass(frozen=True)
class Hardware:
    """A processor's operations per second, on dense matrices."""

    name: str
    sustained: float
    """Sustained single precision, as in the paper's cost estimate."""
    float32: float | None
    """Peak single precision, without TF32."""
    bfloat16: float | None
    """Peak of the matrix units in bfloat16, if there are any."""
    source: str

    def peak(self, precision: str) -> float | None:
        return self.bfloat16 if precision == "bfloat16" else self.float32


_PAPER = "the paper, section 5.2 and footnote 5"
_SHEET = "NVIDIA's data sheet; sustained taken as 0.9 of peak, as the paper's 9.5 are of a P100's 10.6"
_DATA_SHEETS: dict[str, tuple[float, float | None]] = {
    "V100 PCIE": (14.0, None),
    "V100": (15.7, None),
    "T4": (8.1, None),
    "A100": (19.5, 312.0),
    "A10G": (35.0, 70.0),
    "A10": (31.2, 125.0),
    "A40": (37.4, 149.7),
    "L40S": (91.6, 362.0),
    "L4": (30.3, 121.0),
    "RTX 3090 Ti": (40.0, 80.0),
    "RTX 3090": (35.6, 71.0),
    "RTX 4090 D": (73.5, 147.0),
    "RTX 4090": (82.6, 165.2),
    "H100 PCIe": (51.2, 756.0),
    "H100 NVL": (60.0, 835.0),
    "H100": (66.9, 989.4),
    "H200 NVL": (60.0, 835.0),
    "H200": (66.9, 989.4),
    "B200": (75.0, 2250.0),
}
"""Peaks in float32 and bfloat16, in TFLOPS, without sparsity. The first match counts: `H100 PCIe` precedes `H100`."""

HARDWARE = (
    *(Hardware(name, speed, None, None, _PAPER) for name, speed in (("K80", 2.8e12), ("K40", 3.7e12), ("M40", 6e12))),
    Hardware("P100", 9.5e12, 10.6e12, None, _PAPER),
    *(
        Hardware(name, 0.9 * float32 * 1e12, float32 * 1e12, bfloat16 and bfloat16 * 1e12, _SHEET)
        for name, (float32, bfloat16) in _DATA_SHEETS.items()
    ),
)
"""The paper's four GPUs, and later ones."""


def hardware(device: str) -> Hardware | None:
    """Return the entry for a device as torch names it (`NVIDIA H100 80GB HBM3`), or None.

    MIG slices and laptop GPUs return None: their names contain a faster card's name.
    """
    words = set(device.replace("-", " ").replace("_", " ").split())
    if words & {"MIG", "Laptop"}:
        return None
    return next((entry for entry in HARDWARE if set(entry.name.split()) <= words), None)


def sustained(device: str) -> float:
    """Return the sustained single precision of a device as torch names it, or `cpu`: on record or measured here.

    The paper's estimate of the cost is this times the seconds and the number of devices.
    """
    known = hardware(device)
    return known.sustained if known is not None else measure("cpu" if device == "cpu" else "cuda")


def devices(device: str, processes: int) -> int:
    """Return how many devices `processes` train on: a GPU each, or all the same CPU."""
    return 1 if device == "cpu" else processes


def measure(device: str = "cpu", seconds: float = 0.5, dtype: torch.dtype | None = None) -> float:
    """Measure the operations per second of this machine's CPU (`cpu`) or GPU (`cuda`), single precision by default.

    Returns the best of matrix products repeated for about `seconds`.
    """
    import torch

    size = 1024 if device == "cpu" else 8192
    a, b = (torch.rand(size, size, device=device, dtype=dtype) for _ in range(2))
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        torch.mm(a, b)
        if device == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        best = min(best, now - start)
        if now > end:
            return float(2 * size**3 / best)
