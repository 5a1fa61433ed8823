"""List and delete the states that trainings keep on disk, to be resumed or extended: `wmt states`.

A state is `<state root>/train/<fingerprint>/`. Finished results, in models/ and in DVC's cache, do not need it.
"""

from __future__ import annotations

import os
import re
import shutil
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

app = typer.Typer()
DAY = 86_400.0


class State:
    """What a training keeps in a folder."""

    def __init__(self, path: Path) -> None:
        files = [file.stat() for file in path.rglob("*") if file.is_file()]
        used = max((file.st_mtime for file in files), default=path.stat().st_mtime)
        self.path, self.days, self.finished = path, (time.time() - used) / DAY, (path / "done.json").exists()
        # Hard links to one file, as models/ has of checkpoints, count once.
        self.bytes = sum({file.st_ino: file.st_size for file in files}.values())

    def __str__(self) -> str:
        # A folder whose files are missing or damaged is listed, too: to be freed.
        updates = 0
        with suppress(OSError, ValueError, LookupError, TypeError):
            updates = int(read_yaml(self.path / "job.yaml")["training"]["updates"])
        update = max((int(re.sub(r"\D", "", saved.name)) for saved in self.path.glob("resume/update-*")), default=0)
        # The processes of a stage that was killed hold the second one.
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
    if free or older is not None:
        chosen = {state.path: state for state in found if older is not None and state.finished and state.days > older}
        chosen |= {state.path: state for state in (_named(found, name) for name in free or ())}
        for state in chosen.values():
            _delete(state.path)
            print(f"freed {state.path.name}: {state.bytes / 1e6:,.0f} MB")
        return
    print(f"{'state':33} {'update':>9} {'of':>9} {'size':>9} {'last used':>14}", *found, sep="\n")
    total = sum(state.bytes for state in found)
    print(f"{total / 1e9:,.2f} GB in all; free a state with --free STATE, old ones with --older DAYS")


def _named(found: list[State], name: str) -> State:
    """Return the state with a name, or the only one whose name begins so; raise InputError if there is none."""
    matching = [state for state in found if name and state.path.name.startswith(name)]
    # A complete name may be the beginning of another.
    matching = [state for state in matching if state.path.name == name] or matching
    if len(matching) != 1:
        what = f"begins the names of {len(matching)} states" if matching else "is no training's state"
        raise InputError(f"`{name}` {what}: `wmt states` lists them")
    return matching[0]


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
