"""Send the history of a training to MLflow while it grows, from a thread of the stage's process."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.common.processes import Interrupted
from pipeline.tracking import server, source

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

    from nmt.training.history import HistoryReader

INTERVAL = 5.0
"""Seconds between two looks at the history."""
RETRY = 30.0
"""Seconds between two attempts to reach a server that is away."""
BATCH = 900
"""Points after which a batch is sent; MLflow takes 1,000 at once."""
KINDS = ("loss", "valid_loss")
"""The number that every record of an interval has, and the one that every record of a validation has."""


class Points:
    """The points that a run has in MLflow, and those that are sent to it.

    An update is sent once, also where a training that was killed measures it again after its resume.
    """

    def __init__(self, client: MlflowClient, run: Run) -> None:
        self.client, self.run = client, run
        history = client.get_metric_history
        self.known = {kind: {point.step for point in history(run.info.run_id, kind)} for kind in KINDS}

    def send(self, records: Iterable[Mapping[str, float]]) -> None:
        """Send the records of a history that MLflow has not yet.

        A point's time is that of the run's start and the seconds of training: MLflow's relative time counts no
        interruption, and a point that is sent twice is equal.
        """
        from mlflow.entities import Metric

        batch: list[Metric] = []
        for record in records:
            update, kind = int(record["update"]), next(kind for kind in KINDS if kind in record)
            if update in self.known[kind]:
                continue
            self.known[kind].add(update)
            time = self.run.info.start_time + int(1000 * record.get("seconds", 0))
            names = record.keys() - {"update", "seconds"}
            batch += [Metric(name, float(record[name]), time, update) for name in sorted(names)]
            if len(batch) > BATCH:
                self.client.log_batch(self.run.info.run_id, metrics=batch)
                batch = []
        if batch:
            self.client.log_batch(self.run.info.run_id, metrics=batch)


class Follower(threading.Thread):
    """Sends a training's history. Its failures are told once, tried again and stop no training."""

    def __init__(self, state: Path) -> None:
        super().__init__(daemon=True)
        self.state, self.over, self.status, self.warned = state, threading.Event(), "SCHEDULED", False

    def run(self) -> None:
        """Send until the training is over and all is sent, or could not be."""
        import mlflow  # It takes a second.

        with server.quiet():
            opened: tuple[Points, HistoryReader] | None = None
            while True:
                # Asked first: what training writes until it ends is read after that.
                ended, pause = self.over.is_set(), INTERVAL
                try:
                    points, history = opened = opened or self._open()
                    points.send(history.new())
                    if ended:
                        mlflow.end_run(self.status)
                except Exception as error:  # Whatever a server or its client does, the training goes on.
                    opened, pause = None, RETRY
                    self.warn(server.problem(error))
                if ended:
                    return
                self.over.wait(pause)

    def warn(self, what: str) -> None:
        if not self.warned:
            server.warn("train", what)
        self.warned = True

    def _open(self) -> tuple[Points, HistoryReader]:
        import mlflow

        # Imported here: importing torch takes a second.
        from nmt.training.history import HistoryReader

        client = server.connect()
        run = server.open_run(client, self.state.name)
        if mlflow.active_run() is None:
            # It sets the status, and logs the load of CPU, memory, disk, network and GPUs.
            tags = {**source.tags(), "hardware": source.hardware()}
            mlflow.start_run(run.info.run_id, tags=tags, log_system_metrics=True)
        return Points(client, run), HistoryReader(self.state / "history.jsonl")


@contextmanager
def follow(state: Path) -> Iterator[None]:
    """Send the history of the training in `state` to its MLflow run while the block trains, and how the block ends.

    A run is RUNNING while it trains, then SCHEDULED: `publish` finishes it after the last stage. The end of the block
    waits for what is not sent yet, for `PATIENCE` seconds at most.
    """
    follower = Follower(state)
    follower.start()
    try:
        yield
    except (Interrupted, KeyboardInterrupt):
        follower.status = "KILLED"
        raise
    except BaseException:
        follower.status = "FAILED"
        raise
    finally:
        follower.over.set()
        follower.join(server.PATIENCE)
        if follower.is_alive():
            follower.warn(server.too_slow())
