"""How fast processors are: data sheets, or measured here. For the paper's estimate of cost; no weight depends on it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


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


def on_record(device: str) -> Hardware | None:
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
    known = on_record(device)
    return known.sustained if known is not None else measure("cpu" if device == "cpu" else "cuda")


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
