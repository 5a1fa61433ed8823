"""The process beside a stage that takes its spool to MLflow: `python -m pipeline.tracking.courier SPOOL STAGE`.

One MLflow run is one run of the pipeline: the stages that share the resolved configuration and the code of training
(or `$WMT_RUN`, which an orchestrator sets), over restarts, until `report` is through. `$MLFLOW_TRACKING_URI` names the
server; the default is mlflow.db in the state root, with artifacts in mlartifacts beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import getpass
import hashlib
import json
import logging
import os
import re
import select
import shutil
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from nmt.common.files import writing
from pipeline.config.settings import DataSettings, MemberSettings, ParallelSettings
from pipeline.corpora import archive_cache
from pipeline.tracking import evidence, registry
from pipeline.tracking.credentials import masked
from pipeline.tracking.monitor import Monitor
from pipeline.tracking.spool import Event, Spool, alone, flat, patience, slices, spools, warn

if TYPE_CHECKING:
    from mlflow import MlflowClient

INTERVAL = 5.0
"""Seconds between two batches."""
RETRY = 30.0
"""Seconds between two attempts to reach a server that is down."""
ENVIRONMENT = {
    "WMT_RUN": "WMT_RUN",
    "DVC_EXP_NAME": "DVC_EXP_NAME",
    "PREFECT__FLOW_RUN_ID": "prefect.flow_run_id",
}
"""Variables that orchestrators set, and the tags that keep them."""


class Courier:
    """Sends spools to MLflow."""

    def __init__(self, root: Path) -> None:
        self.root = root
        # Asked once: MLflow sets the variable itself.
        told = os.environ.get("MLFLOW_TRACKING_URI")
        self.uri = told or f"sqlite:///{root / 'mlflow.db'}"
        self.address = masked(self.uri)
        """For messages and files. The same store has the same address after its password has changed."""
        if self.address != self.uri:
            # MLflow prints the run's address with the credentials.
            os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
        self.artifacts = None if told else (root / "mlartifacts").as_uri()

    @functools.cached_property
    def client(self) -> MlflowClient:
        """The open store. One process at a time opens it: the first makes the database's tables."""
        from mlflow import MlflowClient, set_tracking_uri

        # The model registry looks a run's model up by the address that stands for the whole process.
        set_tracking_uri(self.uri)
        with self._opening():
            client = MlflowClient(self.uri)
            client.search_experiments(max_results=1)
        return client

    @contextlib.contextmanager
    def _opening(self) -> Iterator[None]:
        with (self.root / "tracking" / "opening").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def send(self, spool: Spool, closing: str | None = None) -> None:
        """Send what was not sent yet, and end the run with the status `closing`."""
        with alone(spool.folder / "sending") as allowed:
            if not allowed:
                return
            state = self._run(spool)
            while True:
                events, offset = spool.read(state["offset"])
                if not events:
                    break
                self._deliver(spool, state["run"], events)
                state["offset"] = offset
                spool.set_state(state)
            self._log_corpora(spool, state)
            if closing is not None:
                self.client.set_terminated(state["run"], closing)
                spool.set_state({**state, "status": closing})
                if spool.is_complete():
                    shutil.rmtree(spool.folder)

    def send_rest(self, own: Spool) -> None:
        """Send what earlier runs left behind, and end those that died while they stood as running."""
        for spool in spools(self.root / "tracking"):
            state = spool.state()
            waits = state.get("status") == "RUNNING" or spool.read(state.get("offset", 0))[0]
            # A run that no stage has sent yet, and whose last stage ended well, is sent by its next stage.
            over = spool.is_complete() or (waits and ("run" in state or spool.ending() != "FINISHED"))
            if spool.folder != own.folder and over and spool.is_dead():
                self.send(spool, spool.ending())

    def _run(self, spool: Spool) -> dict[str, Any]:
        """The state of a spool whose MLflow run exists and stands as running."""
        from mlflow.exceptions import MlflowException

        state = spool.state()
        if state.get("uri") == self.address:
            try:
                if self.client.get_run(state["run"]).info.lifecycle_stage == "active":
                    if state["status"] != "RUNNING":
                        self.client.update_run(state["run"], status="RUNNING")
                        state["status"] = "RUNNING"
                        spool.set_state(state)
                    return state
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
        configuration = yaml.safe_load(spool.config.read_bytes())
        run = configuration["run"]
        created = self.client.create_run(
            self._experiment(f"wmt-{run['pair']}"), run_name=_name(spool, run["row"]), tags={"mlflow.user": user()}
        )
        state = {"uri": self.address, "run": created.info.run_id, "offset": 0, "status": "RUNNING"}
        spool.set_state(state)
        self._describe(state["run"], configuration)
        return state

    def _experiment(self, name: str) -> str:
        """The id of an experiment, made where it is missing."""
        client = self.client
        with self._opening():
            found = client.get_experiment_by_name(name)
            if found is None:
                return client.create_experiment(name, self.artifacts)
            if found.lifecycle_stage != "active":
                client.restore_experiment(found.experiment_id)
            return found.experiment_id

    def _describe(self, run: str, configuration: Mapping[str, Any]) -> None:
        """The full configuration as parameters."""
        from mlflow.entities import Param

        params = [Param(clean(key), str(value)[:6000]) for key, value in flat(configuration)]
        for part in slices(params, 100):
            self.client.log_batch(run, params=part)

    def _log_corpora(self, spool: Spool, state: dict[str, Any]) -> None:
        """The corpora as inputs, each once its digest is known: `download` records some checksums."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        if state.get("corpora_missing") == 0:
            return
        data = DataSettings.model_validate(yaml.safe_load(spool.config.read_bytes())["data"])
        texts = [("training", text) for text in data.train]
        texts += [("validation", data.valid), ("test", data.test)]
        archives = {archive.name: archive_cache.known_sha256(archive, self.root) for archive in data.archives}
        inputs = [
            DatasetInput(
                Dataset(
                    name=text.name,
                    digest=known,
                    source_type="local" if text.source.path else "archive",
                    source=json.dumps({"source": text.source.model_dump(), "target": text.target.model_dump()}),
                ),
                [InputTag("mlflow.data.context", context)],
            )
            for context, text in texts
            if (known := digest(text, archives)) is not None
        ]
        missing = len(texts) - len(inputs)
        if missing < state.get("corpora_missing", len(texts)):
            self.client.log_inputs(state["run"], datasets=inputs)
            state["corpora_missing"] = missing
            spool.set_state(state)

    def _deliver(self, spool: Spool, run: str, events: Sequence[Event]) -> None:
        """Send events: numbers in batches, then tags, then files, then a model."""
        from mlflow.entities import Metric, RunTag

        metrics = [
            Metric(clean(key), float(value), event["time"], event["update"] or 0)
            for event in events
            if event["kind"] == "metrics"
            for key, value in event["values"].items()
        ]
        for numbers in slices(metrics, 1000):
            self.client.log_batch(run, metrics=numbers)
        tags = {k: str(v)[:5000] for event in events if event["kind"] == "tags" for k, v in event["values"].items()}
        for facts in slices([RunTag(clean(key), value) for key, value in tags.items()], 100):
            self.client.log_batch(run, tags=facts)
        for event in events:
            path = spool.artifacts / event.get("name", "")
            if event["kind"] == "artifact" and path.exists():
                parent = str(Path(event["name"]).parent)
                self.client.log_artifact(run, str(path), None if parent == "." else parent)
            if event["kind"] == "model":
                registry.register(self.client, run, path, event["values"])


def digest(text: ParallelSettings, archives: Mapping[str, str | None]) -> str | None:
    """A hash of what decides a parallel text's bytes; None while the checksum of an archive is not known.

    `archives`: name -> sha256. Equal bytes from another mirror have an equal digest.
    """

    def side(member: MemberSettings) -> list[str | None]:
        return [archives[member.archive], member.member] if member.archive else [member.sha256]

    sides = [side(text.source), side(text.target)]
    if any(one[0] is None for one in sides):
        return None
    return hashlib.sha256(json.dumps(sides).encode()).hexdigest()[:16]


def _name(spool: Spool, row: str) -> str:
    """The name of a run in MLflow: the one by which its orchestrator saves it in DVC, else its row."""
    for event in spool.read()[0]:
        if event["kind"] == "tags" and {"WMT_RUN", "DVC_EXP_NAME"} <= event["values"].keys():
            return str(event["values"]["DVC_EXP_NAME"])
    return row


def clean(key: str) -> str:
    """A name as MLflow allows it."""
    return re.sub(r"[^\w.\-/ ]", "_", key)[:250]


def user() -> str:
    """Who runs this, where the system knows."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def tell_evidence(spool: Spool, stage: str) -> None:
    """Add what the stage's numbers rest on to the spool."""
    tags = evidence.code()
    tags["mlflow.source.git.commit"] = tags["commit"]
    tags |= {f"version.{name}": version for name, version in evidence.versions().items()}
    tags |= {f"hardware.{name}": value for name, value in evidence.hardware().items()}
    tags |= {f"deps.{name}": json.dumps(deps) for name, deps in evidence.dependencies(stage).items()}
    tags |= {tag: os.environ[variable] for variable, tag in ENVIRONMENT.items() if variable in os.environ}
    spool.append(stage, "tags", values=tags)
    if difference := evidence.difference():
        name = f"differences/{hashlib.sha256(difference.encode()).hexdigest()[:8]}.patch"
        with writing(spool.artifacts / name) as temporary:
            temporary.write_text(difference, encoding="utf-8")
        spool.append(stage, "artifact", name=name)


def attend(spool: Spool, stage: str, root: Path) -> None:
    """Send until standard input closes, which is when the stage ends."""
    courier = Courier(root)
    monitor = Monitor(spool, stage) if stage == "train" else None
    if monitor is not None:
        monitor.start()
    warned, over, rest, pause = False, False, True, 0.0
    while not over:
        over = bool(select.select([sys.stdin], [], [], pause)[0])
        if over:
            if monitor is not None:
                monitor.stop()
            # What hangs now ends by the alarm, which nothing here catches.
            signal.alarm(patience(spool))
        try:
            courier.send(spool, spool.ending(stage) if over else None)
            if rest:
                courier.send_rest(spool)
            rest, pause = False, INTERVAL
        except Exception as error:  # Whatever a server or its client does, the stage goes on.
            if not warned:
                told = masked(str(error).strip().split("\n")[0])[:200]
                warn(stage, f"MLflow at {courier.address} is not reached ({told})", spool)
            vars(courier).pop("client", None)
            warned, rest, pause = True, True, RETRY


def main() -> int:
    """Send a stage's spool while it works."""
    parser = argparse.ArgumentParser(description="Send a stage's spool to MLflow; started by the stage itself.")
    parser.add_argument("spool", type=Path)
    parser.add_argument("stage")
    arguments = parser.parse_args()
    # The stage says when it is over; signals to the whole group are its to answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "CRITICAL")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    spool = Spool(arguments.spool)
    with spool.at_work():
        tell_evidence(spool, arguments.stage)
        attend(spool, arguments.stage, spool.folder.parent.parent)
    return 0


if __name__ == "__main__":
    sys.exit(main())
