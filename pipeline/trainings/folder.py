"""The folder of a training: held by one process at a time, with the job that torchrun's processes read."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from nmt.common.files import read_yaml, write_text
from nmt.training import checkpoint


def locked(state: Path) -> AbstractContextManager[object]:
    """Lock a state for this process alone. The kernel releases the lock when the process ends, even if killed."""
    state.mkdir(parents=True, exist_ok=True)
    try:
        # `is_held` takes this lock for a moment to test it.
        return FileLock(state / "lock").acquire(timeout=0.2)
    except Timeout as error:
        message = "another process is at this training: wait for it, or stop it"
        raise BlockingIOError(errno.EAGAIN, message, str(state)) from error


def write_job(state: Path, job: Mapping[str, Any]) -> None:
    """Write job.yaml. Remove the outcome files of earlier attempts; done.json stays if it is of the same job."""
    path = state / "job.yaml"
    for name in ("interrupted", "failed.json"):
        (state / name).unlink(missing_ok=True)
    # In other copies of the repository the same corpus has another path.
    same = path.exists() and {**read_yaml(path), "corpus": ""} == {**job, "corpus": ""}
    if not same or not checkpoint.trained(state):
        (state / "done.json").unlink(missing_ok=True)
    write_text(path, yaml.safe_dump(dict(job), sort_keys=False))
