"""DVC's file of locks, which DVC empties before it writes it, and whose processes it knows by their numbers alone."""

import re
from pathlib import Path

import psutil

from nmt.common.processes import is_held

RWLOCK = Path(".dvc/tmp/rwlock")


def mend_locks(repository: Path = Path()) -> bool:
    """Remove DVC's file of locks if no process that it names works here, as after a kill; return whether it did.

    DVC refuses to work with a file that a full disk cut, and waits for any process that has the number of a killed one.
    """
    path = repository / RWLOCK
    if not path.exists() or is_held(path.with_suffix(".lock")):
        return False
    processes = re.findall(r'"pid": *(\d+)', path.read_text(encoding="utf-8", errors="replace"))
    if any(_works_in(repository.resolve(), int(process)) for process in processes):
        return False
    path.unlink(missing_ok=True)
    return True


def _works_in(folder: Path, process: int) -> bool:
    try:
        return Path(psutil.Process(process).cwd()).is_relative_to(folder)
    except psutil.AccessDenied:
        return True  # It is another user's.
    except psutil.Error:
        return False
