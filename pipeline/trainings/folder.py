"""The folder of a training: held by one process at a time, with the job for torchrun's processes, and how they end."""

import contextlib
import errno
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from nmt.common.files import FULL_DISK, read_yaml, write_text
from nmt.common.processes import UNRECORDED, UNUSABLE, Interrupted
from nmt.common.tensors import digest, load_tensors
from nmt.errors import InputError
from nmt.training import chain, checkpoint, history
from nmt.training.state import is_whole
from pipeline.config.paths import read_json

Launch = Callable[[Path, Callable[[], None]], int]
"""Trains the job in a folder and calls the second argument about once a second; returns an exit status."""
Show = Callable[[int, Mapping[str, float]], None]  # shows an update's record of the training's history


def locked(folder: Path) -> AbstractContextManager[object]:
    """Lock a training for this process alone. The kernel releases the lock when the process ends, even if killed."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        # `is_held` takes this lock for a moment to test it.
        return FileLock(folder / "lock").acquire(timeout=0.2)
    except Timeout as error:
        message = "another process is at this training: wait for it, or stop it"
        raise BlockingIOError(errno.EAGAIN, message, str(folder)) from error


def write_job(folder: Path, job: Mapping[str, Any]) -> None:
    """Write job.yaml. Remove the outcome files of earlier attempts; done.json stays if it is of the same job."""
    path = folder / "job.yaml"
    for name in ("interrupted", "failed.json"):
        (folder / name).unlink(missing_ok=True)
    same = False
    with contextlib.suppress(FileNotFoundError, InputError, TypeError):  # It is not there, or was damaged.
        # In other copies of the repository the same corpus has another path.
        same = {**read_yaml(path), "corpus": ""} == {**job, "corpus": ""}
    done, newest = folder / "done.json", checkpoint.latest_resume(folder)
    # Nothing is handed on from a damaged state.
    if done.exists() and not (same and newest is not None and is_whole(newest)):
        done.unlink()
    write_text(path, yaml.safe_dump(dict(job), sort_keys=False))


def check_whole(folder: Path) -> None:
    """Raise InputError where the chain of hashes, a loss or a checkpoint was damaged since it was written."""
    path = folder / history.CHAIN
    links = chain.read_chain(path)
    # A kill may leave a last line without its end.
    lines = path.read_bytes().count(b"\n") if path.exists() else 0
    if len(links) < lines or chain.broken(links) is not None:
        raise InputError(f"{path}, the chain of hashes, was damaged: bring it back, or remove {folder} to train again")
    if _losses_damaged(folder, links):
        what = f"its losses are not those that {path.name} recorded: bring it back, or remove {folder} to train again"
        raise InputError(f"{folder / history.HISTORY} was damaged: {what}")
    hashes = {link.update: link.weights for link in links}
    for kept in checkpoint.checkpoints(folder / "checkpoints"):
        with contextlib.suppress(InputError):  # It cannot be read.
            if hashes.get(checkpoint.update_of(kept)) in {None, digest(load_tensors(kept))}:
                continue
        raise InputError(
            f"{kept} was damaged: it does not have the weights that {path.name} recorded. Remove it to average "
            f"without it, or {folder} to train again"
        )


def _losses_damaged(folder: Path, links: Sequence[chain.Link]) -> bool:
    """Return whether losses of the history, up to the saved state, are not those of the links; or a time is missing."""
    records, saved = history.read_history(folder / history.HISTORY), checkpoint.last_saved_update(folder)
    starts = [0, *(link.update for link in links)]
    try:
        return not all(record["seconds"] >= 0 for record in records) or any(
            chain.losses_hash(records, start, link.update) != link.losses
            for start, link in zip(starts, links, strict=False)
            if link.update <= saved
        )
    except (KeyError, TypeError, ValueError):
        return True


def launch_and_watch(folder: Path, launch: Launch, show: Show) -> None:
    """Train to the end, and show what the main rank records.

    Raises Interrupted if it was asked to stop, InputError for a user's error, ChildProcessError if a process died.
    """
    measured = history.HistoryReader(folder / history.HISTORY)
    measured.new()  # Skip the records of an earlier attempt: updates that it did not save are trained again.
    saved: int | None = None

    def watch() -> None:
        nonlocal saved
        raise_if_refused(folder)
        if (folder / "interrupted").exists():
            # On several nodes, the others would wait for the stopped one to come back.
            raise Interrupted("a training process was asked to stop")
        if saved is None:  # Not before `launch`, which may fetch a newer state.
            saved = checkpoint.last_saved_update(folder)
        for record in measured.new():
            # Resuming replaces the file: earlier records come again, all at once.
            if record["update"] >= saved:
                show(int(record["update"]), record)

    status = launch(folder, watch)
    if not (folder / "done.json").exists():
        raise outcome(folder, status)
    watch()


def raise_if_refused(folder: Path) -> None:
    """Raise what a training process reported and torchrun would only retry: InputError, or OSError for a full disk."""
    # A restart may remove the file at any moment.
    with contextlib.suppress(FileNotFoundError):
        failure = json.loads((folder / "failed.json").read_text(encoding="utf-8"))
        if failure["state"] == "refused":
            raise InputError(str(failure["error"]))
        if failure.get("errno") in FULL_DISK:
            raise OSError(failure["errno"], os.strerror(failure["errno"]), failure["file"])


def outcome(folder: Path, status: int) -> Exception:
    """Return why a training ended before its last update, from torchrun's exit status and the files that are there."""
    raise_if_refused(folder)
    if (folder / "failed.json").exists():
        error = read_json(folder / "failed.json")["error"]
        return ChildProcessError(f"a training process failed: {error}; its output is above")
    why = "a training process was lost"  # Disconnected from the other nodes.
    if (folder / "interrupted").exists():
        why = "a training process was asked to stop"
    elif status == UNRECORDED:
        message = "a training process failed and could not write why, as on a full disk; see above"
        return OSError(errno.ENOSPC, message, str(folder))
    elif status in (2, UNUSABLE):  # 2: torchrun refused its arguments.
        return ChildProcessError("the training cannot start; its output is above")
    elif (number := -status if status < 0 else status - 128) in (signal.SIGTERM, signal.SIGINT):
        why = "torchrun was asked to stop"
    elif number > 0:
        memory = ", probably because memory ran out" if number == signal.SIGKILL else ""
        why = f"a training process was killed by signal {number}{memory}"
    return Interrupted(why)
