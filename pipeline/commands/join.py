"""Join a training that another machine runs, with the same state root, repository and rendezvous: `wmt join`."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from nmt.common.processes import is_held
from nmt.config import InputError
from pipeline.common import stage
from pipeline.stages.train import code_digest, raise_if_refused
from pipeline.training import launch

INTERVAL = 2.0
"""Seconds between two looks for a training to join."""


def join(job: Path | None, hours: float) -> int:
    """Run this node's part of a training that another node started; return torchrun's exit status.

    Without `job`, wait up to `hours` for a training whose first node has the same $WMT_RENDEZVOUS.
    """
    _, most, endpoint = launch.nodes()
    if most == 1:
        raise InputError("WMT_NODES is 1: set it and WMT_RENDEZVOUS as on the first node")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("join: stopped by SIGTERM"))
    job = job or _wait_for(str(endpoint), hours)
    if not (job / "job.yaml").exists():
        raise InputError(f"{job} holds no job.yaml: name the folder that the first node trains in")
    if job.name.split("-")[1:2] != [code_digest()] and os.environ.get("WMT_RESUME_ACROSS_CODE") != "1":
        raise InputError(f"{job.name} is trained with other code than this machine has: check out the first node's")

    def watch() -> None:
        raise_if_refused(job)
        if (job / "interrupted").exists():
            raise InputError("the training was asked to stop; start it again on the first node, then join again")

    return launch.run_node(job, watch)


def _wait_for(endpoint: str, hours: float) -> Path:
    """Return the folder of the training whose nodes meet at `endpoint`, as soon as its first node trains."""
    states, deadline = stage.state_root() / "train", time.monotonic() + 3600 * hours
    print(f"join: waiting for a training in {states} whose nodes meet at {endpoint}", flush=True)
    while time.monotonic() < deadline:
        for path in states.glob(f"*/{launch.RENDEZVOUS}"):
            try:
                # A first node that was killed has left the file.
                if path.read_text(encoding="utf-8") == endpoint and is_held(path.with_name("lock")):
                    return path.parent
            except FileNotFoundError:  # The training has just ended.
                continue
        time.sleep(INTERVAL)
    raise InputError(
        f"no training began at {endpoint} within {hours:g} hours: start `dvc repro` on the first machine with the same "
        "WMT_RENDEZVOUS, and let both see the same folder of states"
    )
