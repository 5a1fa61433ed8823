"""What trainings keep on disk to be resumed or extended: `wmt states` lists it and frees it.

A state is `<state root>/train/<fingerprint>/`. Finished results do not need it: they are in models/ and in DVC's
cache. Without it a training can no longer be resumed, nor extended to more updates.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from nmt.config import InputError

DAY = 86_400.0


@dataclass(frozen=True)
class State:
    """One training's folder."""

    path: Path
    bytes: int
    used: float
    """When something was last written, in seconds since the epoch."""
    update: int
    updates: int
    finished: bool
    running: bool

    @property
    def name(self) -> str:
        """Its fingerprint: settings and data, then code."""
        return self.path.name


def states(root: Path) -> list[State]:
    """The trainings under a state root, the last used first."""
    folders = [path for path in sorted((root / "train").glob("*/")) if not path.name.startswith(".")]
    return sorted(map(_state, folders), key=lambda state: -state.used)


def _state(path: Path) -> State:
    files = [(file.stat(), file) for file in path.rglob("*") if file.is_file()]
    update, updates = 0, 0
    if (path / "job.yaml").exists():
        updates = yaml.safe_load((path / "job.yaml").read_text(encoding="utf-8"))["training"]["updates"]
    for state in sorted((path / "resume").glob("update-*/state.json")):
        update = json.loads(state.read_text(encoding="utf-8"))["update"]
    return State(
        path,
        # Several names of one file (checkpoints that models/ holds too) take their room once.
        sum({stat.st_ino: stat.st_size for stat, _ in files}.values()),
        max((stat.st_mtime for stat, _ in files), default=path.stat().st_mtime),
        update,
        updates,
        (path / "done.json").exists(),
        _locked(path),
    )


def _locked(path: Path) -> bool:
    """Whether a training holds the state now."""
    try:
        with (path / "lock").open("r") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def chosen(found: Sequence[State], names: Sequence[str], older: float | None, now: float) -> list[State]:
    """The states that `names` (or their beginnings) mean, and the finished ones not used for `older` days."""
    picked: dict[str, State] = {}
    for name in names:
        # A whole name may be the beginning of another.
        matching = [state for state in found if state.name == name]
        matching = matching or [state for state in found if state.name.startswith(name)]
        if len(matching) != 1:
            what = "is no training's state" if not matching else f"begins the names of {len(matching)} states"
            raise InputError(f"`{name}` {what}: `wmt states` lists them")
        picked[matching[0].name] = matching[0]
    if older is not None:
        picked |= {state.name: state for state in found if state.finished and now - state.used > older * DAY}
    return list(picked.values())


def free(state: State) -> None:
    """Delete a state; raises InputError where it is being trained."""
    if state.running:
        raise InputError(f"{state.name} is being trained: stop it first")
    # Renamed first: a deletion cut short leaves nothing that could be taken for a state; the next one ends it.
    gone = state.path.with_name(f".{state.name}.{os.getpid()}.tmp")
    os.replace(state.path, gone)
    shutil.rmtree(gone)


def listing(found: Sequence[State], now: float) -> str:
    """A line a state, and the sum."""
    lines = [f"{'state':33} {'update':>9} {'of':>9} {'size':>9} {'last used':>14}"]
    for state in found:
        how = "training" if state.running else "finished" if state.finished else "resumable"
        days = (now - state.used) / DAY
        progress = f"{state.name:33} {state.update:9,} {state.updates:9,}"
        lines.append(f"{progress} {state.bytes / 1e6:6,.0f} MB {days:6.1f} days ago  {how}")
    total = sum(state.bytes for state in found)
    lines.append(f"{len(found)} states, {total / 1e9:,.2f} GB; free one with --free STATE, old ones with --older DAYS")
    return "\n".join(lines)


def free_chosen(root: Path, names: Sequence[str], older: float | None) -> Iterator[State]:
    """Delete the states of `chosen`; yields each when it is gone. Raises InputError as `chosen` and `free` do."""
    for state in chosen(states(root), names, older, time.time()):
        free(state)
        yield state
    # Deletions that were cut short.
    for left in (root / "train").glob(".*.tmp"):
        shutil.rmtree(left)
