"""How fast processors are: data sheets, or measured here. For the paper's estimate of cost; no weight depends on it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.common.files import read_yaml

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Hardware:
    """A processor's operations per second, on dense matrices."""

    name: str
    sustained: float  # sustained single precision, as in the paper's cost estimate
    float32: float | None  # peak single precision, without TF32
    bfloat16: float | None  # peak of the matrix units in bfloat16, if there are any
    source: str

    def peak(self, precision: str) -> float | None:
        return self.bfloat16 if precision == "bfloat16" else self.float32


_PAPER = "the paper, section 6.1, footnote 5"
_SHEET = "NVIDIA's data sheet; sustained taken as 0.9 of peak, as the paper's 9.5 are of a P100's 10.6"
HARDWARE = (
    *(Hardware(name, speed, None, None, _PAPER) for name, speed in (("K80", 2.8e12), ("K40", 3.7e12), ("M40", 6e12))),
    Hardware("P100", 9.5e12, 10.6e12, None, _PAPER),
    *(
        Hardware(name, 0.9 * float32 * 1e12, float32 * 1e12, bfloat16 and bfloat16 * 1e12, _SHEET)
        for name, (float32, bfloat16) in read_yaml(Path(__file__).with_suffix(".yaml")).items()
    ),
)
"""The paper's four GPUs, and later ones."""


def data_sheet(device: str) -> Hardware | None:
    """Return the entry for a device as torch names it (`NVIDIA H100 80GB HBM3`), or None."""
    words = set(device.replace("-", " ").replace("_", " ").split())
    if words & {"MIG", "Laptop"}:  # Their names contain a faster card's name.
        return None
    return next((entry for entry in HARDWARE if set(entry.name.split()) <= words), None)


def sustained(device: str) -> float:
    """Return the sustained single precision of a device as torch names it, or `cpu`: on record or measured here.

    The paper's estimate of the cost is this times the seconds and the number of devices. A GPU without a data
    sheet is measured on this machine's GPU or, without one, its CPU.
    """
    import torch

    known = data_sheet(device)
    if known is not None:
        return known.sustained
    return measure("cpu" if device == "cpu" or not torch.cuda.is_available() else "cuda")


def devices(device: str, processes: int) -> int:
    """Return how many devices `processes` train on: a GPU each, or all the same CPU."""
    return 1 if device == "cpu" else processes


def measure(device: str = "cpu", seconds: float = 0.5, dtype: torch.dtype | None = None) -> float:
    """Measure the operations per second of this machine's CPU (`cpu`) or GPU (`cuda`), single precision by default.

    Returns the best of matrix products repeated for about `seconds`.
    """
    import torch

    from nmt.products import matmul

    size = 1024 if device == "cpu" else 8192
    a, b = (torch.rand(size, size, device=device, dtype=dtype) for _ in range(2))
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        matmul(a, b)
        if device == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        best = min(best, now - start)
        if now > end:
            return float(2 * size**3 / best)
