"""The CPU, from the text that Linux gives."""

import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def processor() -> str:
    return cpuinfo("model name") or platform.processor() or platform.machine()


def cpuinfo(key: str) -> str:
    """Return the first value of a key of /proc/cpuinfo, empty without one."""
    lines = CPUINFO.read_text(encoding="utf-8", errors="replace").split("\n") if CPUINFO.exists() else ()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), "")
