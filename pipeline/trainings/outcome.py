"""How a training that was launched goes on and ends, by the files that its processes write."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from nmt.common.files import FULL_DISK
from nmt.common.processes import UNRECORDED, Interrupted
from nmt.errors import InputError
from nmt.training import history
from pipeline.config.paths import read_json

Launch = Callable[[Path, Callable[[], None]], int]
"""Trains the job in a folder and calls the second argument about once a second; returns an exit status."""
Show = Callable[[int, Mapping[str, float]], None]  # shows an update's record of the training's history


def launch_and_watch(state: Path, launch: Launch, show: Show) -> None:
    """Train to the end, and show what the main rank records.

    Raises Interrupted if it was asked to stop, InputError for a user's error, ChildProcessError if a process died.
    """
    measured = history.HistoryReader(state / history.HISTORY)
    measured.new()  # Skip the records of an earlier attempt: updates that it did not save are trained again.

    def watch() -> None:
        raise_if_refused(state)
        if (state / "interrupted").exists():
            # On several nodes, the others would wait for the stopped one to come back.
            raise Interrupted("a training process was asked to stop")
        for record in measured.new():
            show(int(record["update"]), record)

    status = launch(state, watch)
    if not (state / "done.json").exists():
        raise outcome(state, status)
    watch()


def raise_if_refused(state: Path) -> None:
    """Raise InputError where a training process reported an error of the user's, which torchrun would only retry."""
    # A restart may remove the file at any moment.
    with contextlib.suppress(FileNotFoundError):
        failure = json.loads((state / "failed.json").read_text(encoding="utf-8"))
        if failure["state"] == "refused":
            raise InputError(str(failure["error"]))


def outcome(state: Path, status: int) -> Exception:
    """Return why a training ended before its last update, from torchrun's exit status and the files that are there."""
    raise_if_refused(state)
    if (state / "failed.json").exists():
        failure = read_json(state / "failed.json")
        if failure.get("errno") in FULL_DISK:
            return OSError(failure["errno"], os.strerror(failure["errno"]), failure["file"])
        return ChildProcessError(f"a training process failed: {failure['error']}; its output is above")
    if (state / "interrupted").exists():
        return Interrupted("a training process was asked to stop")
    if status == UNRECORDED:
        message = "a training process failed and could not write why, as on a full disk; see above"
        return OSError(errno.ENOSPC, message, str(state))
    # Killed (by the system where memory runs out, say), or disconnected from the other nodes.
    return Interrupted("a training process was lost")
