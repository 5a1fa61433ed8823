"""What a stage tells of itself, on its way to MLflow.

Stages append what they measure to a spool on disk (pipeline/tracking/spool.py), which costs microseconds and needs no
server. A process beside the stage (pipeline/tracking/courier.py) sends it on, because importing mlflow takes two
seconds and opening its database one to three. Stages of a few seconds leave theirs to the next that sends: `train`,
`report`, or any that lasts half a minute; one that fails or is interrupted sends at once. Where MLflow is missing, down
or slow, everything stays in the spool, and goes out with the next run that reaches it.

One MLflow run is one run of the pipeline: the stages that share the resolved configuration and the code of training
(or `$WMT_RUN`, which an orchestrator sets), over restarts, until `report` is through. `$MLFLOW_TRACKING_URI` names the
server; the default is mlflow.db in the state root, with artifacts in mlartifacts beside it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from pipeline.config.paths import CONFIG
from pipeline.stage import Interrupted, Tracker, state_root
from pipeline.tracking import evidence, exhibits
from pipeline.tracking.spool import SpoolTracker, patience, warn

AT_ONCE = ("train", "report")
"""Stages that send from their start."""
FIRST = "resolve"
"""The stage that writes the configuration: until then no run is known."""
LAST = "report"
SEND_AFTER = 30.0
"""Seconds after which any other stage sends too."""


def folder() -> Path | None:
    """Where the present run is tracked; None before there is a configuration."""
    if not CONFIG.exists():
        return None
    name = os.environ.get("WMT_RUN")
    if name is None:
        name = hashlib.sha256(CONFIG.read_bytes() + evidence.training_code().encode()).hexdigest()[:16]
    return state_root().absolute() / "tracking" / re.sub(r"[^A-Za-z0-9_-]", "_", name)


@contextlib.contextmanager
def open_run(stage: str) -> Iterator[Tracker]:
    """The tracker of a stage of the present run. However the stage ends, its run does not stand as running."""
    patience()  # told now where it is wrong, and not at the end
    # The report's numbers are the run's: those of results/metrics.json, by their names there.
    tracker = SpoolTracker(stage, folder, CONFIG, prefix="" if stage == LAST else f"{stage}/")
    sender = Sender(tracker)
    started, status = time.monotonic(), "FAILED"
    try:
        if stage != FIRST:
            # A stage that is killed before it measures anything must still end its run.
            tracker.open()
        if stage in AT_ONCE:
            sender.start()
        else:
            sender.timer.start()
        yield tracker
        tracker.add("metrics", values={f"{stage}/seconds": time.monotonic() - started}, update=None)
        if stage == LAST:
            exhibits.hand_over(tracker)
        status = "FINISHED"
    except (Interrupted, KeyboardInterrupt):
        status = "KILLED"
        raise
    finally:
        if tracker.spool is not None:
            tracker.add("end", status=status)
            if stage == LAST and status == "FINISHED":
                tracker.spool.complete()
            if status != "FINISHED":
                # No later stage of this run may come that would send it.
                sender.start()
        sender.finish()
        tracker.close()


class Sender:
    """The process beside a stage that sends its spool. It ends when the stage does, however that ends."""

    def __init__(self, tracker: SpoolTracker) -> None:
        self.tracker = tracker
        self.process: subprocess.Popen[bytes] | None = None
        self.lock = threading.Lock()
        self.timer = threading.Timer(SEND_AFTER, self.start)
        self.timer.daemon = True

    def start(self) -> None:
        """Start it, once, where MLflow is installed."""
        with self.lock:
            spool = self.tracker.open()
            if self.process is not None or spool is None:
                return
            if importlib.util.find_spec("mlflow") is None:
                warn(self.tracker.stage, "MLflow is not installed", spool)
                return
            command = [sys.executable, "-m", "pipeline.tracking.courier", str(spool.folder), self.tracker.stage]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE)

    def finish(self) -> None:
        """Tell it that the stage is over, and wait for it, but not for long."""
        self.timer.cancel()
        with self.lock:
            spool = self.tracker.spool
            if self.process is None or spool is None:
                return
            assert self.process.stdin is not None
            self.process.stdin.close()
            try:
                # It gives up by itself before.
                status = self.process.wait(timeout=patience(spool) + 5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                status = self.process.wait()
            if status != 0:
                warn(self.tracker.stage, "MLflow did not take everything in time", spool)
