"""Scores, times and ends of stages as text."""

import re
from collections.abc import Mapping
from typing import Any

from humanize import precisedelta

from nmt.common.files import FULL_DISK
from nmt.errors import InputError
from nmt.task import task_in

_OUT_OF_MEMORY = re.compile(
    "Cannot allocate memory|failed to map segment|can't start new thread|DefaultCPUAllocator|out of memory"
)
"""What libraries say where memory ran out."""


def sentence(error: BaseException) -> str | None:
    """Return one sentence for an error of the user, a file, a disk or memory; None for any other: it is our fault."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(str(error)):
        return (
            f"memory ran out ({error}): free some, or raise its limit (ulimit -v, the container's); "
            "`wmt translate` takes less by --batch-tokens"
        )
    if not isinstance(error, OSError):
        return None
    if error.errno in FULL_DISK:
        # Of a copy to a full disk not the source, which it names first.
        where = error.filename2 or error.filename
        remedy = f": {where}; make room and run again: nothing half-written is left" if where else "; make room"
        return f"{error.strerror}{remedy}"
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error) or None


def score_and_interval(scores: Mapping[str, Any], key: str, digits: int = 1) -> tuple[str, str]:
    """Return a score and its 95% interval as text: `26.5` and `25.9 to 27.1`."""
    score, low, high = (f"{scores[name]:.{digits}f}" for name in (key, f"{key}_low", f"{key}_high"))
    return score, f"{low} to {high}"


def duration(seconds: float) -> str:
    """Return a time in its two largest units, as `1 hour and 29 minutes`."""
    finer = {86_400: "hours", 3_600: "minutes"}
    unit = next((name for size, name in finer.items() if seconds >= size), "seconds")
    return precisedelta(seconds, minimum_unit=unit, suppress=["months", "years"], format="%.0f")


def summary(scores: Mapping[str, Any]) -> str:
    """Return a line for each test set of results/scores.json: its score, the interval and how it was computed."""
    task = task_in(scores)
    score, interval = score_and_interval(scores, task.key)
    where = f"on {scores[f'{task.key}_set']}; {task.program}, {scores[f'{task.key}_signature']}"
    line = f"{task.title:<7} {score} (95% interval {interval}) {where}"
    return "\n".join([line, *map(summary, scores.get("sets", {}).values())])
