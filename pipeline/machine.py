"""Facts about this machine: processor, memory, and the cores that this process may use."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from nmt.config import Precision

CPUINFO = Path("/proc/cpuinfo")
BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16"}
"""Names in /proc/cpuinfo of a CPU's units that multiply bfloat16; without them it is slower than float32."""


def available_cores() -> int:
    """Return the number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor() -> str:
    """Return the CPU's name."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def fastest_precision() -> Precision:
    """Return the precision in which this machine's CPU multiplies matrices fastest."""
    return "bfloat16" if BFLOAT16_FLAGS.intersection(_cpuinfo("flags").split()) else "float32"


def _cpuinfo(key: str) -> str:
    """Return the first value of a key of /proc/cpuinfo, empty without one."""
    if CPUINFO.exists():
        for line in CPUINFO.read_text(encoding="utf-8", errors="replace").split("\n"):
            if line.startswith(key):
                return line.split(":", 1)[1].strip()
    return ""


def memory() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
