"""DVC's file of locks, which DVC empties before it writes it, and whose processes it knows by their numbers alone."""

from __future__ import annotations

import json
from pathlib import Path

import psutil

from nmt.common.processes import is_held

RWLOCK = Path(".dvc/tmp/rwlock")


def mend_locks(repository: Path = Path()) -> bool:
    """Remove DVC's file of locks if a kill or a full disk cut it, or no process in it works here; return whether.

    DVC refuses to work with a cut file, and waits for any process that has the number of a killed one.
    """
    path = repository / RWLOCK
    if not path.exists() or is_held(path.with_suffix(".lock")):
        return False
    try:
        locks = json.loads(path.read_text(encoding="utf-8"))
        holders = [
            *locks.get("write", {}).values(),
            *(one for readers in locks.get("read", {}).values() for one in readers),
        ]
        if any(_works_in(repository.resolve(), int(holder["pid"])) for holder in holders):
            return False
    except (ValueError, AttributeError, TypeError, KeyError):
        pass
    path.unlink(missing_ok=True)
    return True


def _works_in(folder: Path, process: int) -> bool:
    try:
        return Path(psutil.Process(process).cwd()).is_relative_to(folder)
    except psutil.AccessDenied:
        return True  # It is another user's.
    except psutil.Error:
        return False
