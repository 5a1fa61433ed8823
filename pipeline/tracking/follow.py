"""Send the history of a training to MLflow while it grows, from a thread of the stage's process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt.common.processes import Interrupted
from pipeline.tracking import sample, server, source

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

INTERVAL = 5.0  # seconds between two looks at the history
RETRY = 30.0  # seconds between two attempts to reach a server that is away
BATCH = 1000  # points that MLflow takes at once
KINDS = ("loss", "valid_loss", sample.CHRF)
"""A key of each kind of record: of an interval, a validation, a validation sample."""


class Points:
    """The points that a run has in MLflow: each update is sent once, even if a resumed training measures it again."""

    def __init__(self, client: MlflowClient, run: Run) -> None:
        self.client, self.run = client, run
        history = client.get_metric_history
        self.known = {(kind, point.step) for kind in KINDS for point in history(run.info.run_id, kind)}

    def send(self, records: Iterable[Mapping[str, float]]) -> None:
        """Send the records of a history that MLflow has not yet.

        A point's time is that of the run's start and the seconds of training: MLflow's relative time counts no
        interruption, and a point that is sent twice is equal.
        """
        from mlflow.entities import Metric

        points: list[Metric] = []
        for record in records:
            update = int(record["update"])
            new = {(kind, update) for kind in KINDS if kind in record} - self.known
            if new:
                self.known |= new
                time = self.run.info.start_time + int(1000 * record.get("seconds", 0))
                # The kinds last: a record that a failure cut lacks its kind, and is sent again.
                names = sorted(record.keys() - {"update", "seconds"}, key=lambda name: (name in KINDS, name))
                points += [Metric(name, float(record[name]), time, update) for name in names]
        for first in range(0, len(points), BATCH):
            self.client.log_batch(self.run.info.run_id, metrics=points[first : first + BATCH])

    def send_sample(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Send the scores of the validation samples in a history that MLflow has not yet."""
        new = (record for record in records if (sample.CHRF, int(record["update"])) not in self.known)
        self.send(sample.scored(new))


@contextmanager
def follow(folder: Path) -> Iterator[None]:
    """Send the history of the training in `folder` to its MLflow run while the block trains, and how the block ends.

    Failures are tried again and stop no training. A run is RUNNING while it trains, then SCHEDULED: `publish` finishes
    it after the last stage. The end of the block waits for what is not sent yet.
    """
    over, status = threading.Event(), "SCHEDULED"

    def send(warn: Callable[[str], None]) -> None:
        # Imported here: MLflow and torch take a second each.
        import mlflow

        from nmt.training.history import HistoryReader

        points: Points | None = None
        ended, pause = False, 0.0
        while not ended:
            # Read `over` before the history: then the last records are sent, too.
            ended, pause = over.wait(pause), INTERVAL
            try:
                if points is None:
                    client = server.connect()
                    run = server.open_run(client, folder.name)
                    if mlflow.active_run() is None:
                        source.send(client, run.info.run_id)  # first: where it fails, it is tried again
                        # It sets the status, and logs the load of CPU, memory, disk, network and GPUs.
                        mlflow.start_run(run.info.run_id, tags={"hardware": source.hardware()}, log_system_metrics=True)
                    points, history = Points(client, run), HistoryReader(folder / "history.jsonl")
                new = history.new()
                points.send(new)
                points.send_sample(new)
                if ended:
                    mlflow.end_run(status)
            except Exception as error:  # Whatever a server or its client does, the training goes on.
                points, pause = None, RETRY
                warn(server.problem(error))

    with server.beside("train", send):
        try:
            yield
        except BaseException as error:
            status = "KILLED" if isinstance(error, Interrupted | KeyboardInterrupt) else "FAILED"
            raise
        finally:
            over.set()
