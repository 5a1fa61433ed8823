"""Bring MLflow to what the records of runs say. Doing it twice changes nothing.

Numbers, tags and status are compared with those of the MLflow run. How much of the history and which artifacts it has,
it says itself, in the tag `wmt.published`. Every number has its time from the record, and MLflow keeps one of several
equal points: what was sent, but not noted in the tag, may be sent again.

`$MLFLOW_TRACKING_URI` names the server; the default is mlflow.db in the state root, with artifacts in mlartifacts.
`python -m pipeline.tracking.publish FOLDER STAGE` publishes a record every few seconds until standard input is closed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import getpass
import hashlib
import json
import logging
import math
import os
import re
import select
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from pipeline.config.settings import DataSettings, MemberSettings, ParallelSettings
from pipeline.corpora import archive_cache
from pipeline.stage import read_json, write_json
from pipeline.tracking import registry
from pipeline.tracking.credentials import masked
from pipeline.tracking.monitor import Monitor
from pipeline.tracking.record import Record, lock, read, records, signature
from pipeline.tracking.stage_tracker import TRAIN, patience, warn

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

INTERVAL = 5.0
"""Seconds between two publications of a stage at work."""
RETRY = 30.0
"""Seconds between two attempts to reach a server that is down."""
BATCH = 1000
"""Metrics that MLflow takes at once."""
RECORD, PUBLISHED = "wmt.record", "wmt.published"
"""Tags of an MLflow run: the record that it shows, and what it has of it."""
EVIDENCE = ("run.json", "dvc.lock", "stages", "differences")
"""Files of a record that are artifacts beside its results."""


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

    def disconnect(self) -> None:
        """Open the store again for the next request."""
        vars(self).pop("client", None)

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
            published.log_corpora(self.root)
            published.register_model()
            published.set_status()
            note = {"uri": self.address, "run": run.info.run_id, "signature": state}
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
        experiment = self._experiment(f"wmt-{described['pair']}")
        found = self.client.search_runs([experiment], f"tags.`{RECORD}` = '{uuid}'")
        tags = {"mlflow.user": user(), RECORD: uuid}
        if not found and described["parent"]:
            tags["mlflow.parentRunId"] = self.run(Record(record.folder.with_name(described["parent"])))[0].info.run_id
        run = found[0] if found else self.client.create_run(
            experiment, start_time=described["created"], tags=tags, run_name=described["name"]
        )  # fmt: skip
        self.runs[uuid] = run.info.run_id
        return run, not found

    def _experiment(self, name: str) -> str:
        """Return the id of an experiment, created where it is missing."""
        client = self.client  # Opening it takes the same lock.
        with lock(self.root / "mlflow.lock"):
            found = client.get_experiment_by_name(name)
            if found is None:
                return str(client.create_experiment(name, self.artifacts))
            if found.lifecycle_stage != "active":
                client.restore_experiment(found.experiment_id)
            return str(found.experiment_id)

    def publish_waiting(self, runs: Path, own: Path | None = None) -> None:
        """Publish what earlier runs left: those that were published in part, and those that did not end well.

        A run between two stages is left alone: its next stage publishes it.
        """
        for record in records(runs):
            status = record.status()
            over = bool(record.published()) or record.is_complete() or status != "FINISHED"
            if record.folder != own and status != "RUNNING" and over and not record.is_published():
                self.publish(record, wait=False)


class Publication:
    """One record on its way into one MLflow run."""

    def __init__(self, client: MlflowClient, record: Record, run: Run) -> None:
        self.client, self.record, self.run, self.id = client, record, run, run.info.run_id
        self.description, self.stages = record.description(), record.stages()
        self.noted: dict[str, Any] = {"history.jsonl": 0, "load.jsonl": 0, "files": {}, "model": ""}
        self.noted |= json.loads(run.data.tags.get(PUBLISHED, "{}"))
        self.changed = False

    def log(self, metrics: Mapping[str, tuple[float, int]] | None = None, **content: Any) -> None:
        """Send a batch of changes."""
        from mlflow.entities import Metric

        points = [Metric(clean(key), value, time, 0) for key, (value, time) in (metrics or {}).items()]
        self.client.log_batch(self.id, metrics=points + content.pop("points", []), **content)
        self.changed = True

    def note(self, **points: Any) -> None:
        """Write into the MLflow run what it has, with metrics of the same batch."""
        from mlflow.entities import RunTag

        self.log(tags=[RunTag(PUBLISHED, json.dumps(self.noted))], **points)

    def describe(self) -> None:
        """Set parameters (row, pair, corpus, seed and what differs from the row) and tags."""
        from mlflow.entities import Param, RunTag

        named = {key: self.description[key] for key in ("row", "pair", "corpus", "seed") if key in self.description}
        params = {clean(key): str(value)[:6000] for key, value in (named | self.description["settings"]).items()}
        if missing := params.keys() - self.run.data.params.keys():
            self.log(params=[Param(key, params[key]) for key in sorted(missing)])
        tags = self.description["tags"] | self.scores(str)
        for name, stage in self.stages.items():
            evidence = stage.get("evidence", {})
            tags |= evidence.get("tags", {}) | stage.get("tags", {})
            tags |= {f"deps.{other}": json.dumps(deps) for other, deps in evidence.get("deps", {}).items()}
            tags[f"status.{name}"] = stage["status"]
        if (self.record.results / "samples.json").exists():
            tags["mlflow.loggedArtifacts"] = json.dumps([{"path": "samples.json", "type": "table"}])
        report = self.record.results / "report.md"
        if report.exists():
            first = report.read_text(encoding="utf-8").partition("\n## ")[2].partition("\n## ")[0]
            tags["mlflow.note.content"] = first.partition("\n")[2].strip()
        tags = {clean(key): str(value)[:5000] for key, value in tags.items()}
        changed = [RunTag(key, value) for key, value in tags.items() if self.run.data.tags.get(key) != value]
        for start in range(0, len(changed), 100):
            self.log(tags=changed[start : start + 100])

    def scores(self, *types: type) -> dict[str, Any]:
        """Return the numbers, or the facts, of results/metrics.json."""
        path = self.record.results / "metrics.json"
        found = read_json(path) if path.exists() else {}
        return {key: value for key, value in found.items() if isinstance(value, types)}

    def log_numbers(self) -> None:
        """Set the scores by their names in results/metrics.json, and what a stage measured by `<stage>/<name>`."""
        numbers = {key: (float(value), self.description["created"]) for key, value in self.scores(int, float).items()}
        for name, stage in self.stages.items():
            measured = stage.get("metrics", {}) | {key: stage[key] for key in ("seconds",) if key in stage}
            time = stage.get("end", stage["start"])
            numbers |= {f"{name}/{key}": (float(value), time) for key, value in measured.items()}
        known = self.run.data.metrics
        changed = {
            key: point for key, point in numbers.items()
            if clean(key) not in known or not (known[clean(key)] == point[0] or math.isnan(point[0]))
        }  # fmt: skip
        if changed:
            self.log(changed)

    def log_history(self) -> None:
        """Send the lines of the history and of the machine's load that MLflow has not yet."""
        from mlflow.entities import Metric

        for path in (self.record.history, self.record.load):
            lines, end = read(path, self.noted[path.name])
            points = [
                Metric(clean(key), float(value), line["time"], line["update"])
                for line in lines for key, value in line["values"].items()
            ]  # fmt: skip
            for start in range(0, len(points), BATCH):
                part = points[start : start + BATCH]
                if start + BATCH < len(points):
                    self.log(points=part)
                else:
                    self.noted[path.name] = end
                    self.note(points=part)

    def log_artifacts(self) -> None:
        """Send the files that are new or have changed: results, configuration, evidence."""
        paths = [*self.record.results.glob("*"), *(self.record.folder / name for name in EVIDENCE)]
        for path in paths:
            if path.exists() and self.noted["files"].get(path.name) != (state := signature([path])):
                self.client.log_artifact(self.id, str(path))
                self.noted["files"][path.name] = state
                self.note()

    def log_corpora(self, root: Path) -> None:
        """Set the corpora as inputs, each once its digest is known: `download` records some checksums."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        if not self.record.config.exists():
            return
        data = DataSettings.model_validate(yaml.safe_load(self.record.config.read_bytes())["data"])
        texts = [("training", text) for text in data.train]
        texts += [("validation", data.valid), ("test", data.test)]
        logged = self.run.inputs.dataset_inputs if self.run.inputs else []
        known = {corpus.dataset.name for corpus in logged}
        if known >= {text.name for _, text in texts}:
            return
        archives = {archive.name: archive_cache.known_sha256(archive, root) for archive in data.archives}
        inputs = [
            DatasetInput(
                Dataset(
                    name=text.name,
                    digest=found,
                    source_type="local" if text.source.path else "archive",
                    source=json.dumps({"source": text.source.model_dump(), "target": text.target.model_dump()}),
                ),
                [InputTag("mlflow.data.context", context)],
            )
            for context, text in texts
            if text.name not in known and (found := digest(text, archives)) is not None
        ]
        if inputs:
            self.client.log_inputs(self.id, datasets=inputs)
            self.changed = True

    def register_model(self) -> None:
        """Register the model of a complete run that was scored."""
        if not (self.description["complete"] and self.record.model.exists() and self.scores(int, float)):
            return
        if self.noted["model"] != (state := signature([self.record.model])):
            configuration = yaml.safe_load(self.record.config.read_bytes())
            facts = {key: value for key, value in self.scores(str).items() if key.startswith("bleu")}
            values = {
                "name": f"wmt-{self.description['pair']}",
                "metrics": self.scores(int, float),
                "tags": {key: str(value) for key, value in configuration["run"].items()} | facts,
                "search": configuration["search"],
                "time": self.description["created"],
            }
            registry.register(self.client, self.id, self.record.model, values)
            self.noted["model"] = state
            self.note()

    def set_status(self) -> None:
        """Set the run's status and end."""
        status = self.record.status()
        if status == self.run.info.status:
            return
        if status == "RUNNING":
            self.client.update_run(self.id, status=status)
        else:
            ends = [stage["end"] for stage in self.stages.values() if "end" in stage]
            self.client.set_terminated(self.id, status, max(ends, default=None))
        self.changed = True


def digest(text: ParallelSettings, archives: Mapping[str, str | None]) -> str | None:
    """Return a hash of what decides a parallel text's bytes; None while the checksum of an archive is not known.

    `archives`: name -> sha256. Equal bytes from another mirror have an equal digest.
    """

    def side(member: MemberSettings) -> list[str | None]:
        return [archives[member.archive], member.member] if member.archive else [member.sha256]

    sides = [side(text.source), side(text.target)]
    if any(one[0] is None for one in sides):
        return None
    return hashlib.sha256(json.dumps(sides).encode()).hexdigest()[:16]


def clean(key: str) -> str:
    """Return a name as MLflow allows it."""
    return re.sub(r"[^\w.\-/ ]", "_", key)[:250]


def user() -> str:
    """Return the user's name, where the system knows it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep MLflow's own messages out of a stage's output, and its requests short."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "CRITICAL")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
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
    monitor = Monitor(record) if stage == TRAIN else None
    if monitor is not None:
        monitor.start()
    warned, over, rest, pause = False, False, True, 0.0
    while not over:
        over = bool(select.select([sys.stdin], [], [], pause)[0])
        if over:
            if monitor is not None:
                monitor.stop()
            # A request that hangs now is ended by the alarm, which nothing here catches.
            signal.alarm(patience(record))
        try:
            server.publish(record)
            if rest:
                server.publish_waiting(record.folder.parent, record.folder)
            rest, pause = False, INTERVAL
        except Exception as error:  # Whatever a server or its client does, the stage goes on.
            if not warned:
                problem = masked(str(error).strip().split("\n")[0])[:200]
                warn(stage, f"MLflow at {server.address} is not reached ({problem})", record)
            server.disconnect()
            warned, rest, pause = True, True, RETRY


def main() -> int:
    """Run the process beside a stage."""
    parser = argparse.ArgumentParser(description="Publish a run's record; started by the stage itself.")
    parser.add_argument("record", type=Path)
    parser.add_argument("stage")
    arguments = parser.parse_args()
    # The stage answers signals that the whole group gets.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with quiet():
        follow(Record(arguments.record), arguments.stage)
    return 0


if __name__ == "__main__":
    sys.exit(main())
