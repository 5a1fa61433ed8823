"""Facts about this machine: processor, memory, and the cores and GPUs that this process may use."""

import os
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from nmt.common.cpu import cpuinfo
from nmt.schema import Precision

BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16"}
"""Names in /proc/cpuinfo of a CPU's units that multiply bfloat16; without them it is slower than float32."""

CGROUP, CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
"""The control groups of this process, and where their limits are: those of a container, or of a job."""

NVIDIA_SMI_TIMEOUT = 20.0  # seconds; a driver that hangs does not answer at all


class Gpu(NamedTuple):
    id: str  # the UUID, `GPU-` and hexadecimal digits
    name: str
    memory: str  # with its unit, as `81559 MiB`
    capability: str  # CUDA's, as `9.0`


@cache
def gpus() -> list[Gpu]:
    """Return the NVIDIA GPUs that this process may use, by nvidia-smi and CUDA_VISIBLE_DEVICES.

    torch's count takes a second to import, and torch's names take memory of the GPUs.
    """
    command = ["nvidia-smi", "--query-gpu=uuid,name,memory.total,compute_cap", "--format=csv,noheader"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=NVIDIA_SMI_TIMEOUT).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    # Without a GPU it may print a sentence.
    installed = [Gpu(*fields) for line in listed.splitlines() if len(fields := line.split(", ")) == 4]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return installed
    chosen = [part.strip() for part in visible.split(",")]
    # CUDA uses one slice of a GPU at most, and nvidia-smi does not list it here. GPUs with slices are 8.0 or newer.
    slices = [part for part in chosen if part.startswith("MIG-")]
    if installed and slices:
        return [Gpu(slices[0], "MIG slice", "unknown memory", "8.0")]
    return [
        gpu
        for index, gpu in enumerate(installed)
        if any(str(index) == c or (c and gpu.id.startswith(c)) for c in chosen)
    ]


def hide_gpus_if_portable(arithmetic: str) -> None:
    """Hide the GPUs from this process and what it starts if `training.arithmetic` is portable, which only CPUs have."""
    if arithmetic == "portable":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        gpus.cache_clear()


def available_cores() -> int:
    """Return the cores that this process may use: those that it is bound to, or fewer by its groups' quotas of time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [*_limits("", "cpu.max"), *_limits("cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us")]
    return min([cores, *(max(1, int(quota) // int(period)) for quota, period in quotas if quota.isdecimal())])


def _limits(controller: str, *files: str) -> Iterator[list[str]]:
    """Yield the words of `files` of each control group above this process: of version 1's `controller`, or of 2."""
    for line in CGROUP.read_text(encoding="utf-8").splitlines() if CGROUP.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            root = CGROUPS / controllers
            # In a container the path may be that of the host, and its own group is the root.
            for group in (root / path.strip("/"), *(root / path.strip("/")).parents):
                if group.is_relative_to(root) and all((group / file).exists() for file in files):
                    yield " ".join((group / file).read_text(encoding="utf-8") for file in files).split()


def fastest_precision() -> Precision:
    """Return the precision in which the device that trains multiplies matrices fastest: GPUs, or else the CPU."""
    if gpus():  # From 8.0 (A100) on, they multiply bfloat16 in hardware.
        return "bfloat16" if min(float(gpu.capability) for gpu in gpus()) >= 8 else "float32"
    return "bfloat16" if BFLOAT16_FLAGS.intersection(cpuinfo("flags").split()) else "float32"


def memory() -> int:
    """Return the bytes of memory of the device that trains: of the smallest GPU, or else what this process may use."""
    sizes = [int(size) * 2**20 for gpu in gpus() if (size := gpu.memory.split(" ")[0]).isdecimal()]
    return min(sizes) if sizes else main_memory()


def main_memory() -> int:
    """Return the bytes of this machine's memory that this process may use."""
    limits = [*_limits("", "memory.max"), *_limits("memory", "memory.limit_in_bytes")]
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *(int(limit) for (limit,) in limits if limit.isdecimal())])
