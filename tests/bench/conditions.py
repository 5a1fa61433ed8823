"""What a measurement was made on, as every benchmark reports it, and the numbers of those that compare."""

import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from nmt.common.cpu import processor
from pipeline.config import machine

UNITS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "asimd", "bf16", "i8mm")
"""Processor flags that decide the speed of matrix products."""


def conditions() -> dict[str, Any]:
    """Processor, its vector units, cores, torch's threads, and the load of the last minute."""
    cpuinfo = Path("/proc/cpuinfo")
    words = set(cpuinfo.read_text(encoding="utf-8").split()) if cpuinfo.exists() else set()
    return {
        "processor": processor(),
        "vector_units": " ".join(unit for unit in UNITS if unit in words) or "unknown",
        "cores": machine.available_cores(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
    }


def announce(name: str) -> None:
    """Print the conditions at the start of a benchmark, on standard error: standard output may be JSON."""
    described = conditions()
    print(
        f"{name}: {described['processor']} ({described['vector_units']}), {described['cores']} cores, "
        f"{described['threads']} threads, load {described['load']}",
        file=sys.stderr,
        flush=True,
    )


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median of several measurements, and the least and the largest."""
    return {"median": statistics.median(values), "least": min(values), "largest": max(values)}
