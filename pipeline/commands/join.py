"""Join a training that another machine runs, with the same state root, repository and rendezvous: `wmt join`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from nmt.config import InputError
from pipeline.stages.train import code_digest, raise_if_refused
from pipeline.training import launch


def join(job: Path) -> int:
    """Run this node's part of a training that another node started; return torchrun's exit status."""
    if not (job / "job.yaml").exists():
        raise InputError(f"{job} holds no job.yaml: name the folder that the first node trains in")
    if launch.nodes()[1] == 1:
        raise InputError("WMT_NODES is 1: set it and WMT_RENDEZVOUS as on the first node")
    if job.name.split("-")[1:2] != [code_digest()] and os.environ.get("WMT_RESUME_ACROSS_CODE") != "1":
        raise InputError(f"{job.name} is trained with other code than this machine has: check out the first node's")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("join: stopped by SIGTERM"))

    def watch() -> None:
        raise_if_refused(job)
        if (job / "interrupted").exists():
            raise InputError("the training was asked to stop; start it again on the first node, then join again")

    return launch.train(job, watch)
