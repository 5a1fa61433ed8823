"""What a measurement was made on, as every benchmark reports it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from pipeline import machine

UNITS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "asimd", "bf16", "i8mm")
"""Processor flags that decide the speed of matrix products."""


def conditions() -> dict[str, Any]:
    """Processor, its vector units, cores, torch's threads, and the load of the last minute."""
    cpuinfo = Path("/proc/cpuinfo")
    words = set(cpuinfo.read_text(encoding="utf-8").split()) if cpuinfo.exists() else set()
    return {
        "processor": machine.processor(),
        "vector_units": " ".join(unit for unit in UNITS if unit in words) or "unknown",
        "cores": machine.available_cores(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
    }
