"""One run in MLflow, brought to what its record says.

Numbers, tags and status are compared with those of the MLflow run. The MLflow run's tag `wmt.published` notes which
history lines and artifacts it already has. Every number has its time from the record, and MLflow keeps one of several
equal points: what was sent, but not noted in the tag, may be sent again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import yaml

from pipeline.common.settings import DataSettings, MemberSettings, ParallelSettings
from pipeline.common.stage import read_json
from pipeline.config.scorer import scorer
from pipeline.corpora import archive_cache
from pipeline.tracking import registry
from pipeline.tracking.record import Record, read, signature

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

BATCH = 1000
"""Metrics that MLflow takes at once."""
RECORD, PUBLISHED = "wmt.record", "wmt.published"
"""Tags of an MLflow run: the record that it shows, and what it has of it."""
EVIDENCE = ("run.json", "dvc.lock", "stages", "differences")
"""Files of a record that are artifacts beside its results."""


class Publication:
    """One record on its way into one MLflow run."""

    def __init__(self, client: MlflowClient, record: Record, run: Run) -> None:
        self.client, self.record, self.run, self.id = client, record, run, run.info.run_id
        self.description, self.stages = record.description(), record.stages()
        self.noted: dict[str, Any] = {
            "history.jsonl": 0,
            "load.jsonl": 0,
            "files": {},
            "corpora": False,
            "model": "",
        }
        self.noted |= json.loads(run.data.tags.get(PUBLISHED, "{}"))
        self.changed = False

    def log(self, **content: Any) -> None:
        """Send a batch of changes."""
        self.client.log_batch(self.id, **content)
        self.changed = True

    def note(self, metrics: Sequence[Metric] = ()) -> None:
        """Write into the MLflow run what it has, after the metrics of the same batch."""
        from mlflow.entities import RunTag

        self.log(metrics=metrics, tags=[RunTag(PUBLISHED, json.dumps(self.noted))])

    def describe(self) -> None:
        """Set parameters (row, pair, corpus, seed and what differs from the row) and tags."""
        from mlflow.entities import Param, RunTag

        named = {key: self.description[key] for key in ("row", "pair", "corpus", "seed") if key in self.description}
        params = {clean(key): str(value)[:6000] for key, value in (named | self.description["settings"]).items()}
        if missing := params.keys() - self.run.data.params.keys():
            self.log(params=[Param(key, params[key]) for key in sorted(missing)])
        tags = self.description["tags"] | self.scores(str)
        for name, stage in self.stages.items():
            evidence = stage.get("evidence", {"tags": {}, "deps": {}})
            tags |= evidence["tags"] | stage.get("tags", {})
            tags |= {f"deps.{name}": json.dumps(evidence["deps"]), f"status.{name}": stage["status"]}
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
        from mlflow.entities import Metric

        created = self.description["created"]
        numbers = [Metric(key, float(value), created, 0) for key, value in self.scores(int, float).items()]
        for name, stage in self.stages.items():
            measured = stage.get("metrics", {}) | {key: stage[key] for key in ("seconds",) if key in stage}
            time = stage.get("end", stage["start"])
            numbers += [Metric(clean(f"{name}/{key}"), float(value), time, 0) for key, value in measured.items()]
        known = self.run.data.metrics
        if changed := [each for each in numbers if str(each.value) != str(known.get(each.key))]:  # `nan` equals itself.
            self.log(metrics=changed)

    def log_history(self) -> None:
        """Send the lines of the history and of the machine's load that MLflow has not yet."""
        from mlflow.entities import Metric

        for path in (self.record.history, self.record.load):
            lines, end = read(path, self.noted[path.name])
            points = [
                Metric(clean(key), float(value), line["time"], line["update"])
                for line in lines
                for key, value in line["values"].items()
            ]
            for start in range(0, len(points), BATCH):
                part = points[start : start + BATCH]
                if start + BATCH < len(points):
                    self.log(metrics=part)
                else:
                    self.noted[path.name] = end
                    self.note(part)

    def log_artifacts(self) -> None:
        """Send the files that are new or have changed: results, configuration, evidence."""
        paths = [*self.record.results.glob("*"), *(self.record.folder / name for name in EVIDENCE)]
        for path in paths:
            if path.exists() and self.noted["files"].get(path.name) != (state := signature([path])):
                self.client.log_artifact(self.id, str(path))
                self.noted["files"][path.name] = state
                self.note()

    def log_corpora(self) -> None:
        """Set the corpora as inputs, each once its digest is known: `download` records some checksums."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        if self.noted["corpora"] or not self.record.config.exists():
            return
        data = DataSettings.model_validate(yaml.safe_load(self.record.config.read_bytes())["data"])
        texts = [("training", text) for text in data.train]
        texts += [("validation", data.valid), ("test", data.test)]
        logged = self.run.inputs.dataset_inputs if self.run.inputs else []
        known = {corpus.dataset.name for corpus in logged}
        archives = {
            archive.name: archive_cache.known_sha256(archive, self.record.folder.parent.parent)
            for archive in data.archives
        }
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
            self.noted["corpora"] = len(known) + len(inputs) == len(texts)
            self.note()

    def register_model(self) -> None:
        """Register the model of a complete run that was scored."""
        if not (self.description["complete"] and self.record.model.exists() and self.scores(int, float)):
            return
        if self.noted["model"] != (state := signature([self.record.model])):
            configuration = yaml.safe_load(self.record.config.read_bytes())
            numbers = self.scores(int, float)
            facts = {key: value for key, value in self.scores(str).items() if key.startswith(scorer(numbers).key)}
            values = {
                "name": f"wmt-{self.description['pair']}",
                "metrics": numbers,
                "tags": {key: str(value) for key, value in configuration["run"].items()} | facts,
                "search": configuration["search"],
                "time": self.description["created"],
            }
            registry.register(self.client, self.id, self.record.model, values)
            self.noted["model"] = state
            self.note()

    def set_status(self) -> str:
        """Set the run's status and end; returns the status."""
        status = self.record.status()
        if status != self.run.info.status:
            self.changed = True
            if status == "RUNNING":
                self.client.update_run(self.id, status=status)
            else:
                ends = [stage["end"] for stage in self.stages.values() if "end" in stage]
                self.client.set_terminated(self.id, status, max(ends, default=None))
        return status


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
