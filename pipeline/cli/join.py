"""Join a training that another machine runs, with the same state root, repository and rendezvous: `wmt join`."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import typer

from nmt.common.processes import is_held
from nmt.config import InputError
from pipeline.cli.repository import check_folder
from pipeline.config.paths import state_root
from pipeline.train import launch

app = typer.Typer()

INTERVAL = 2.0
"""Seconds between two looks for the training to join."""


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
