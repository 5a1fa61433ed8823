"""List and delete the states that trainings keep on disk, to be resumed or extended: `wmt states`.

A state is `<state root>/train/<fingerprint>/`. Finished results, in models/ and in DVC's cache, do not need it.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from nmt.common.files import read_yaml
from nmt.common.processes import TRAINERS, is_held
from nmt.config import InputError

DAY = 86_400.0
UNREADABLE = (OSError, ValueError, LookupError, TypeError)
"""Errors of files that are missing, or hold something else than they should."""


@dataclass(frozen=True)
class TrainingFolder:
    """One training's folder."""

    path: Path
    bytes: int
    used: float  # time of the last write, in seconds since the epoch
    update: int
    updates: int
    finished: bool
    running: bool

    @property
    def name(self) -> str:
        """Return its fingerprint: settings and data, then code."""
        return self.path.name


def states(root: Path) -> list[TrainingFolder]:
    """Return the trainings under a state root, the last used first."""
    folders = [path for path in sorted((root / "train").glob("*/")) if not path.name.startswith(".")]
    return sorted(map(_state, folders), key=lambda state: -state.used)


def _state(path: Path) -> TrainingFolder:
    files = [file.stat() for file in path.rglob("*") if file.is_file()]
    saved = sorted((path / "resume").glob("update-*/state.json"))
    update = updates = 0
    # A folder whose files are missing or damaged is listed, too: to be freed.
    with suppress(*UNREADABLE):
        update = int(json.loads(saved[-1].read_text(encoding="utf-8"))["update"])
    with suppress(*UNREADABLE):
        updates = int(read_yaml(path / "job.yaml")["training"]["updates"])
    return TrainingFolder(
        path,
        # Hard links to one file, as models/ has of checkpoints, count once.
        sum({file.st_ino: file.st_size for file in files}.values()),
        max((file.st_mtime for file in files), default=path.stat().st_mtime),
        update,
        updates,
        (path / "done.json").exists(),
        _running(path),
    )


def _running(path: Path) -> bool:
    """Return whether a stage trains in the folder now, or processes of one that was killed."""
    return is_held(path / "lock") or is_held(path / TRAINERS)


def chosen(
    found: Sequence[TrainingFolder], names: Sequence[str], older: float | None, now: float
) -> list[TrainingFolder]:
    """Return the states with `names` (a beginning suffices), and the finished ones not used for `older` days.

    Raises InputError where a name fits no state or several, or `older` is no number from 0 on.
    """
    if older is not None and not 0 <= older < math.inf:
        raise InputError(f"--older is {older:g}: give a number of days from 0 on")
    picked: dict[str, TrainingFolder] = {}
    for name in names:
        # A complete name may be the beginning of another.
        matching = [state for state in found if state.name == name]
        matching = matching or [state for state in found if name and state.name.startswith(name)]
        if len(matching) != 1:
            what = "is no training's state" if not matching else f"begins the names of {len(matching)} states"
            raise InputError(f"`{name}` {what}: `wmt states` lists them")
        picked[matching[0].name] = matching[0]
    if older is not None:
        picked |= {state.name: state for state in found if state.finished and now - state.used > older * DAY}
    return list(picked.values())


def listing(found: Sequence[TrainingFolder], now: float) -> str:
    """Return a line per state, and the sum."""
    lines = [f"{'state':33} {'update':>9} {'of':>9} {'size':>9} {'last used':>14}"]
    for state in found:
        status = "training" if state.running else "finished" if state.finished else "resumable"
        days = (now - state.used) / DAY
        progress = f"{state.name:33} {state.update:9,} {state.updates:9,}"
        lines.append(f"{progress} {state.bytes / 1e6:6,.0f} MB {days:6.1f} days ago  {status}")
    total = sum(state.bytes for state in found)
    lines.append(f"{len(found)} states, {total / 1e9:,.2f} GB; free one with --free STATE, old ones with --older DAYS")
    return "\n".join(lines)


def free_chosen(root: Path, names: Sequence[str], older: float | None) -> Iterator[TrainingFolder]:
    """Delete the states of `chosen`; yield each after its deletion. Raises InputError for one that is being trained."""
    for state in chosen(states(root), names, older, time.time()):
        # Renamed first, so that an interrupted deletion leaves no incomplete state; the next call completes it.
        gone = state.path.with_name(f".{state.name}.{os.getpid()}.tmp")
        try:
            # A training may have begun since the states were listed.
            with FileLock(state.path / "lock", timeout=0), FileLock(state.path / TRAINERS, timeout=0):
                os.replace(state.path, gone)
        except Timeout as error:
            raise InputError(f"{state.name} is being trained: stop it first") from error
        shutil.rmtree(gone)
        yield state
    # Interrupted deletions.
    for left in (root / "train").glob(".*.tmp"):
        shutil.rmtree(left)
