"""Bring MLflow to what the records of runs say. Doing it twice changes nothing.

`$MLFLOW_TRACKING_URI` names the server; the default is mlflow.db in the state root, with artifacts in mlartifacts.
`python -m pipeline.tracking.publish FOLDER STAGE` publishes a record every few seconds until standard input is closed.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import logging
import os
import select
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.config import InputError
from pipeline.common.stage import write_json
from pipeline.config import graph
from pipeline.runs.credentials import masked
from pipeline.runs.record import Record, lock, records
from pipeline.runs.stage_tracker import patience, warn
from pipeline.tracking import views
from pipeline.tracking.monitor import Monitor
from pipeline.tracking.projection import RECORD, Publication

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

INTERVAL = 5.0
"""Seconds between two publications of a stage at work."""
RETRY = 30.0
"""Seconds between two attempts to reach a server that is down."""
MLFLOW = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
"""Settings of MLflow, where the environment has no others."""


class Server:
    """The MLflow store that runs are published to. `root`: the state root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        chosen = os.environ.get("MLFLOW_TRACKING_URI")  # MLflow sets the variable itself, later.
        self.uri = chosen or f"sqlite:///{root / 'mlflow.db'}"
        self.address = masked(self.uri)
        """For messages and files. A store has the same address after its password has changed."""
        if self.address != self.uri:
            # MLflow prints the address of a run with its credentials.
            os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
        self.artifacts = None if chosen else (root / "mlartifacts").as_uri()
        self.runs: dict[str, str] = {}
        """uuid of a record -> id of its MLflow run."""

    @functools.cached_property
    def client(self) -> MlflowClient:
        """The open store. One process at a time opens it: the first creates the tables of the database."""
        from mlflow import MlflowClient, set_tracking_uri

        # The model registry reads the address of the whole process.
        set_tracking_uri(self.uri)
        with lock(self.root / "mlflow.lock"):
            client = MlflowClient(self.uri)
            client.search_experiments(max_results=1)
        return client

    def publish(self, record: Record, wait: bool = True) -> bool:
        """Bring MLflow to what `record` says; returns whether that changed anything.

        Where another process publishes the record, wait for it, or leave it to that one.
        """
        with lock(record.folder / "publish.lock", wait) as free:
            if not free:
                return False
            state = record.signature()
            run, created = self.run(record)
            published = Publication(self.client, record, run)
            published.describe()
            published.log_numbers()
            published.log_history()
            published.log_artifacts()
            published.log_corpora()
            published.register_model()
            status = published.set_status()
            where = {"uri": self.address, "experiment": run.info.experiment_id, "run": run.info.run_id}
            note = {**where, "signature": state, "status": status}
            if record.published() != note:
                write_json(record.folder / "published.json", note)
            return created or published.changed

    def run(self, record: Record) -> tuple[Run, bool]:
        """Return the MLflow run of a record, and whether it was created now."""
        described = record.description()
        uuid = described["uuid"]
        if uuid in self.runs:
            run = self.client.get_run(self.runs[uuid])
            if run.info.lifecycle_stage == "active":
                return run, False
        experiment = self._experiment(described["pair"])
        tags = {"mlflow.user": user(), RECORD: uuid}
        parent = record.folder.with_name(described["parent"] or record.folder.name)
        if parent != record.folder and (parent / "run.json").exists():
            tags["mlflow.parentRunId"] = self.run(Record(parent))[0].info.run_id
        # Two runs of a study may create its run at the same time.
        with lock(record.folder / "create.lock"):
            found = self.client.search_runs([experiment], f"tags.`{RECORD}` = '{uuid}'")
            run = (
                found[0]
                if found
                else self.client.create_run(
                    experiment, start_time=described["created"], tags=tags, run_name=described["name"]
                )
            )
        self.runs[uuid] = run.info.run_id
        return run, not found

    def _experiment(self, pair: str) -> str:
        """Return the id of a pair's experiment, created where it is missing, with its description and its views."""
        from mlflow.exceptions import MlflowException

        client, name = self.client, views.experiment_name(pair)  # Opening the client takes the same lock.
        with lock(self.root / "mlflow.lock"):
            found = client.get_experiment_by_name(name)
            if found is None:
                try:
                    return str(client.create_experiment(name, self.artifacts, views.tags(pair)))
                except MlflowException:
                    # The lock holds on this machine alone: another one may have created it meanwhile.
                    found = client.get_experiment_by_name(name)
                    if found is None:
                        raise
            if found.lifecycle_stage != "active":
                client.restore_experiment(found.experiment_id)
            for key, value in views.tags(pair).items():
                if key not in found.tags:
                    client.set_experiment_tag(found.experiment_id, key, value)
            return str(found.experiment_id)

    def publish_waiting(self, runs: Path, own: Path | None = None) -> None:
        """Publish what earlier runs left: those that were published in part, and those that did not end well.

        A run between two stages is left alone: its next stage publishes it.
        """
        for record in records(runs):
            with contextlib.suppress(InputError):  # A damaged record, which `wmt publish` reports.
                status = record.status()
                over = bool(record.published()) or record.is_complete() or status != "FINISHED"
                if record.folder != own and status != "RUNNING" and over and not record.is_published():
                    self.publish(record, wait=False)


def user() -> str:
    """Return the user's name, where the system knows it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep MLflow's own messages out of a stage's output, and its requests short."""
    for name, value in MLFLOW.items():
        os.environ.setdefault(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.ERROR)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def follow(record: Record, stage: str) -> None:
    """Publish a record every few seconds until standard input is closed, which is when the stage ends."""
    server = Server(record.folder.parent.parent)
    monitor = Monitor(record) if stage == graph.training_stage() else None
    if monitor is not None:
        monitor.start()
    warned, over, rest, pause = False, False, True, 0.0
    while not over:
        over = bool(select.select([sys.stdin], [], [], pause)[0])
        if over:
            if monitor is not None:
                monitor.stop()
            # A request that hangs now is ended by the alarm, which nothing here catches.
            signal.alarm(patience())
        try:
            server.publish(record)
            if rest:
                server.publish_waiting(record.folder.parent, record.folder)
            rest, pause = False, INTERVAL
        except Exception as error:  # Whatever a server or its client does, the stage goes on.
            if not warned:
                problem = masked(str(error).strip().split("\n")[0])[:200]
                warn(stage, f"MLflow at {server.address} is not reached ({problem})", record)
            vars(server).pop("client", None)
            warned, rest, pause = True, True, RETRY


def main() -> None:
    """Run the process beside a stage."""
    # The stage answers signals that the whole group gets.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    folder, stage = sys.argv[1:]
    with quiet():
        follow(Record(Path(folder)), stage)


if __name__ == "__main__":
    main()
