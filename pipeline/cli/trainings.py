"""The trainings whose states are on this machine's disk: list and delete these (`wmt states`), join one (`wmt join`).

A state is `<state root>/train/<fingerprint>/`. Finished results, in models/ and in DVC's cache, do not need it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from filelock import FileLock, Timeout

from nmt.common.files import read_yaml
from nmt.common.processes import TRAINERS, is_held
from nmt.config import InputError
from pipeline.cli.repository import check_folder
from pipeline.config.paths import state_root
from pipeline.train import launch

app = typer.Typer()
DAY = 86_400.0
INTERVAL = 2.0  # seconds between two looks for the training to join


class State:
    """What a training keeps in a folder."""

    def __init__(self, path: Path) -> None:
        files = [file.stat() for file in path.rglob("*") if file.is_file()]
        used = max((file.st_mtime for file in files), default=path.stat().st_mtime)
        self.path, self.days, self.finished = path, (time.time() - used) / DAY, (path / "done.json").exists()
        # Hard links to one file, as models/ has of checkpoints, count once.
        self.bytes = sum({file.st_ino: file.st_size for file in files}.values())

    def __str__(self) -> str:
        # Folders with missing or damaged files are listed, too, so that they can be freed.
        updates = 0
        with suppress(OSError, ValueError, LookupError, TypeError):
            updates = int(read_yaml(self.path / "job.yaml")["training"]["updates"])
        update = max((int(re.sub(r"\D", "", saved.name)) for saved in self.path.glob("resume/update-*")), default=0)
        # The processes of a killed stage may still hold the second lock.
        running = is_held(self.path / "lock") or is_held(self.path / TRAINERS)
        status = "training" if running else "finished" if self.finished else "resumable"
        progress = f"{self.path.name:33} {update:9,} {updates:9,}"
        return f"{progress} {self.bytes / 1e6:6,.0f} MB {self.days:6.1f} days ago  {status}"


@app.command("states", rich_help_panel="Runs")
def manage_states(
    free: Annotated[
        list[str] | None,
        typer.Option(metavar="STATE", help="Delete this one (its first letters suffice); may be repeated."),
    ] = None,
    older: Annotated[
        float | None, typer.Option(metavar="DAYS", min=0, help="Delete finished states not used for DAYS days.")
    ] = None,
) -> None:
    """List the states that trainings save to be resumed or extended, and delete some.

    Finished results do not need them: they are in models/ and in DVC's cache. Without its state, a training can no
    longer be resumed or extended to more updates.

    \b
    Example:
      wmt states --older 30
    """
    check_folder()
    folders = [path for path in (state_root() / "train").glob("*/") if not path.name.startswith(".")]
    found = sorted(map(State, folders), key=lambda state: (state.days, state.path))
    chosen = {state.path: state for state in found if older is not None and state.finished and state.days > older}
    for name in free or ():
        matching = [state for state in found if name and state.path.name.startswith(name)]
        matching = [state for state in matching if state.path.name == name] or matching
        if len(matching) != 1:
            raise InputError(f"`{name}` names {len(matching)} states: `wmt states` lists them")
        chosen[matching[0].path] = matching[0]
    for state in chosen.values():
        _delete(state.path)
        print(f"freed {state.path.name}: {state.bytes / 1e6:,.0f} MB")
    if not free and older is None:
        print(f"{'state':33} {'update':>9} {'of':>9} {'size':>9} {'last used':>14}", *found, sep="\n")
        total = sum(state.bytes for state in found)
        print(f"{total / 1e9:,.2f} GB in all; free a state with --free STATE, old ones with --older DAYS")


def _delete(path: Path) -> None:
    # Renamed first, so that an interrupted deletion leaves no incomplete state; the next call completes it.
    gone = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with FileLock(path / "lock", timeout=0), FileLock(path / TRAINERS, timeout=0):
            os.replace(path, gone)
    except Timeout as error:
        raise InputError(f"{path.name} is being trained: stop it first") from error
    for left in path.parent.glob(".*.tmp"):
        shutil.rmtree(left)


@app.command("join", rich_help_panel="Runs")
def join() -> None:
    """Train as a further node with the machine that runs `dvc repro`; wait until its training begins.

    All machines share the state root and the repository, and set the same rendezvous: WMT_NODES=2
    WMT_RENDEZVOUS=first-machine:29400.

    \b
    Example:
      wmt join
    """
    check_folder()
    # Imported here: importing torch takes a second.
    from pipeline.stages.train import code_digest, raise_if_refused

    _, most, endpoint = launch.nodes()
    if most == 1:
        raise InputError("WMT_NODES is 1: set it and WMT_RENDEZVOUS as on the first node")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("join: stopped by SIGTERM"))
    print(f"join: waiting for a training in {state_root()} whose nodes meet at {endpoint}", flush=True)
    while (job := _training_at(str(endpoint))) is None:
        time.sleep(INTERVAL)
    if job.name.split("-")[1:2] != [code_digest()] and os.environ.get("WMT_RESUME_ACROSS_CODE") != "1":
        raise InputError(f"{job.name} is trained with other code than this machine has: check out the first node's")

    def watch() -> None:
        raise_if_refused(job)
        if (job / "interrupted").exists():
            raise InputError("the training was asked to stop; start it again on the first node, then join again")

    raise typer.Exit(launch.torchrun(job, watch))


def _training_at(endpoint: str) -> Path | None:
    """Return the folder of the training whose first node runs and meets the others at `endpoint`."""
    for path in (state_root() / "train").glob(f"*/{launch.RENDEZVOUS}"):
        # The file stays when its training ends; the lock does not.
        if path.read_text(encoding="utf-8") == endpoint and is_held(path.with_name("lock")):
            return path.parent
    return None
