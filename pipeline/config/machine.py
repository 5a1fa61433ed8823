"""Facts about this machine: processor, memory, and the cores and GPUs that this process may use."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from functools import cache

from nmt.common.cpu import cpuinfo
from nmt.schema import Precision

BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16"}
"""Names in /proc/cpuinfo of a CPU's units that multiply bfloat16; without them it is slower than float32."""

NVIDIA_SMI_TIMEOUT = 20.0  # seconds; a driver that hangs does not answer at all


@dataclass(frozen=True)
class Gpu:
    id: str  # the UUID, `GPU-` and hexadecimal digits
    name: str
    memory: str  # with its unit, as `81559 MiB`


@cache
def gpus() -> list[Gpu]:
    """Return the NVIDIA GPUs that this process may use, by nvidia-smi and CUDA_VISIBLE_DEVICES.

    torch's count takes a second to import, and torch's names take memory of the GPUs.
    """
    # Without a GPU it may print a sentence.
    found = [Gpu(*fields) for line in _nvidia_smi("uuid,name,memory.total") if len(fields := line.split(", ")) == 3]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return found
    chosen = [part.strip() for part in visible.split(",")]
    return [
        gpu for index, gpu in enumerate(found) if any(str(index) == c or (c and gpu.id.startswith(c)) for c in chosen)
    ]


def _nvidia_smi(fields: str) -> list[str]:
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=NVIDIA_SMI_TIMEOUT).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return listed.splitlines()


def available_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def fastest_precision() -> Precision:
    """Return the precision in which the device that trains multiplies matrices fastest: GPUs, or else the CPU."""
    if gpus():
        # From 8.0 (A100) on, GPUs multiply bfloat16 in hardware. Old drivers do not tell.
        capabilities = re.findall(r"^\d+\.\d+$", "\n".join(_nvidia_smi("compute_cap")), re.MULTILINE)
        return "bfloat16" if capabilities and min(map(float, capabilities)) >= 8 else "float32"
    return "bfloat16" if BFLOAT16_FLAGS.intersection(cpuinfo("flags").split()) else "float32"


def memory() -> int:
    """Return the bytes of memory of the device that trains: of the smallest GPU, or without one of this machine."""
    sizes = [int(size) * 2**20 for gpu in gpus() if (size := gpu.memory.split(" ")[0]).isdecimal()]
    return min(sizes) if sizes else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
