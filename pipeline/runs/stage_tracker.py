"""Write what a stage measures into the record of its run, and publish the record from a process beside the stage.

Importing mlflow takes two seconds and opening its database one to three. So stages of a few seconds leave publishing to
a later one: `train` and the last stage publish from their start, other stages once they have run 30 s. A failed or
killed stage publishes as it ends. What is not sent within $WMT_TRACKING_PATIENCE seconds stays in the record for the
next publication: that of any later run, or `wmt publish`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from nmt.common.files import writing
from nmt.config import InputError
from pipeline.common.paths import CONFIG
from pipeline.common.stage import Interrupted, Tracker, write_json
from pipeline.config import graph
from pipeline.runs import evidence
from pipeline.runs.record import Record, append, current_record, is_locked, lock, now, separate_if_data_changed

PUBLISH_AFTER = 30.0
"""Seconds after which a stage publishes while it works."""
PATIENCE = "30"
"""Seconds that the end of a stage waits for its publication, where `$WMT_TRACKING_PATIENCE` is not set."""
FAILURES = (OSError, ValueError)
"""Errors of files that cannot be written or read: no stage fails because of its record."""


class StageTracker:
    """Writes into the record of the present run. Its own failures are reported once and stop no stage."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.record: Record | None = None
        self.content: dict[str, Any] = {"status": "running", "start": now(), "metrics": {}, "tags": {}}
        self.last: tuple[int, set[str]] = -1, set()
        self.warned = False
        self.held = contextlib.ExitStack()

    def metrics(self, values: Mapping[str, float], update: int | None = None) -> None:
        """See `Tracker`. A resumed training reports its history again; what the record has already is left out."""
        if update is None:
            self.write(metrics=self.content["metrics"] | dict(values))
            return
        last, names = self.last
        if self.record is not None and (update > last or (update == last and not values.keys() <= names)):
            with self.warning():
                append(self.record.history, {"time": now(), "update": update, "values": dict(values)})
                self.last = update, (names if update == last else set()) | values.keys()

    def tags(self, values: Mapping[str, str]) -> None:
        """See `Tracker`."""
        self.write(tags=self.content["tags"] | dict(values))

    def open(self) -> None:
        """Lock the run, and record what the stage's numbers rest on."""
        with self.warning():
            record = current_record()
            if record is None:
                return
            if self.stage == graph.training_stage() and "WMT_RUN" not in os.environ:
                record = separate_if_data_changed(record)
            record.create(CONFIG)
            if is_locked(record.stage_lock):
                print(f"{self.stage}: waiting for another process of this run ({record.folder.name})", file=sys.stderr)
            self.held.enter_context(lock(record.stage_lock))
            record.update(complete=False)
            self.last, self.record = record.last(), record
            self.write(evidence=evidence.of(self.stage))
            if difference := evidence.difference():
                name = hashlib.sha256(difference.encode()).hexdigest()[:8]
                with writing(record.folder / f"differences/{name}.patch") as temporary:
                    temporary.write_text(difference, encoding="utf-8")

    def write(self, **changes: Any) -> None:
        """Change the stage's file, once there is a record."""
        self.content |= changes
        with self.warning():
            if self.record is not None:
                write_json(self.record.folder / f"stages/{self.stage}.json", self.content)

    def close(self, status: str) -> None:
        """Record how the stage ended, and collect its results if it finished."""
        end = now()
        self.write(status=status, end=end, seconds=(end - self.content["start"]) / 1000)
        with self.warning():
            if self.record is not None and status == "finished":
                finished = graph.upstream(self.stage, graph.stages())
                (self.record.finish if self.stage == graph.last_stage() else self.record.collect)(finished)
        self.held.close()

    @contextlib.contextmanager
    def warning(self) -> Iterator[None]:
        """Report the first failure, and go on."""
        try:
            yield
        except FAILURES as error:
            if not self.warned:
                print(f"{self.stage}: tracking: {error}; the stage goes on without it", file=sys.stderr)
            self.warned = True


@contextlib.contextmanager
def open_run(stage: str) -> Iterator[Tracker]:
    """Yield the tracker of a stage of the present run. However the stage ends, its record says so."""
    patience()  # A wrong value is refused before the stage begins.
    tracker, status = StageTracker(stage), "failed"
    # Before the configuration is resolved, the run is not known.
    resolves = graph.made_by(str(CONFIG), graph.stages()) == stage
    if not resolves:
        tracker.open()
    publisher = Publisher(tracker)
    try:
        yield tracker
        status = "finished"
    except (Interrupted, KeyboardInterrupt):
        status = "killed"
        raise
    finally:
        if resolves and status == "finished":
            tracker.open()
        tracker.close(status)
        if status != "finished":
            publisher.start()  # No later stage may come that would publish it.
        publisher.finish()


class Publisher:
    """The process that publishes a record beside a stage. It ends when the stage does, however that ends."""

    def __init__(self, tracker: StageTracker) -> None:
        self.tracker = tracker
        self.process: subprocess.Popen[bytes] | None = None
        self.lock = threading.Lock()
        self.timer = threading.Timer(PUBLISH_AFTER, self.start)
        self.timer.daemon = True
        if tracker.stage in {graph.training_stage(), graph.last_stage()}:
            self.start()
        else:
            self.timer.start()

    def start(self) -> None:
        """Start it, once there is a record."""
        with self.lock:
            if self.process is None and self.tracker.record is not None:
                self.process = start(self.tracker.record, self.tracker.stage)

    def finish(self) -> None:
        """Let it publish the end of the stage, and wait for that for a bounded time."""
        self.timer.cancel()
        with self.lock:
            if self.process is not None and self.tracker.record is not None:
                finish(self.process, self.tracker.record, self.tracker.stage)


def publish(record: Record, stage: str) -> None:
    """Publish a record once, waiting for a bounded time."""
    if (process := start(record, stage)) is not None:
        finish(process, record, stage)


def start(record: Record, stage: str) -> subprocess.Popen[bytes] | None:
    """Start the process that publishes `record` until its standard input is closed; None where MLflow is missing."""
    if importlib.util.find_spec("mlflow") is None:
        warn(stage, "MLflow is not installed", record)
        return None
    command = [sys.executable, "-m", "pipeline.tracking.publish", str(record.folder), stage]
    return subprocess.Popen(command, stdin=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes], record: Record, stage: str) -> None:
    """Close the standard input of a process that `start` made, and wait until it has published, or for `patience`."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        status = process.wait(timeout=patience() + 5)  # It ends by itself before.
    except subprocess.TimeoutExpired:
        process.kill()
        status = process.wait()
    if status != 0:
        warn(stage, "MLflow did not take everything in time", record)


def patience() -> int:
    """Return how many seconds to wait for a publication; raises InputError where the variable is no number."""
    chosen = os.environ.get("WMT_TRACKING_PATIENCE", PATIENCE)
    if not chosen.isdecimal():
        raise InputError(f"WMT_TRACKING_PATIENCE is {chosen!r}: it must be a whole number of seconds, or unset")
    return int(chosen)


def warn(stage: str, problem: str, record: Record) -> None:
    """Print the one line about tracking that a stage prints."""
    where = f"the run is in {record.folder}; the next run or `wmt publish` publishes it"
    print(f"{stage}: tracking: {problem}: {where}", file=sys.stderr, flush=True)
