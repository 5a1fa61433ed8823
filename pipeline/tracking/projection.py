"""One run in MLflow, brought to what its record says.

Numbers, tags and status are compared with those of the MLflow run. The MLflow run's tag `wmt.published` notes which
history lines and artifacts it already has. Every number has its time from the record, and MLflow keeps one of several
equal points: what was sent, but not noted in the tag, may be sent again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nmt.common.files import read_yaml
from pipeline.common.settings import DataSettings, MemberSettings, ParallelSettings
from pipeline.common.stage import read_json
from pipeline.config import graph
from pipeline.config.scorer import scorer
from pipeline.corpora import archive_cache
from pipeline.runs.record import CORPORA, Record, read, signature
from pipeline.tracking import descriptions, names, registry
from pipeline.tracking.names import clean

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

BATCH = 999
"""Metrics that MLflow takes at once."""
RECORD, PUBLISHED = "wmt.record", "wmt.published"
"""Tags of an MLflow run: the record that it shows, and what it has of it."""
EVIDENCE = ("run.json", "dvc.lock", "stages", "differences")
"""Files of a record that are artifacts beside its results."""
FACTS = ("set", "signature", "model", "valid_set")
"""What tags say of a score. The rest is in scores.json, as the versions of libraries are in the files of stages."""
CONTEXTS = {"train": "training", "valid": "validation", "test": "test"}
"""Role of a text -> MLflow's name of it."""


class Publication:
    """One record on its way into one MLflow run."""

    def __init__(self, client: MlflowClient, record: Record, run: Run) -> None:
        self.client, self.record, self.run, self.id = client, record, run, run.info.run_id
        # Scores before stages: where there are scores, the stage that made them has ended.
        self.scores = record.scores()
        self.numbers = {key: value for key, value in self.scores.items() if isinstance(value, int | float)}
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
        """Set parameters (row, pair, corpus, seed, what differs from the row, sizes), tags and the description."""
        from mlflow.entities import Param, RunTag

        scores = self.scores
        named = {key: self.description[key] for key in ("row", "pair", "corpus", "seed") if key in self.description}
        # With a prefix: MLflow sorts parameters by name, and what names the run comes first.
        settings = {f"settings.{key}": value for key, value in self.description["settings"].items()}
        sizes = {name: scores[key] for key, name in names.SIZES.items() if key in scores}
        params = {clean(key): str(value)[:6000] for key, value in (named | settings | sizes).items()}
        if missing := params.keys() - self.run.data.params.keys():
            self.log(params=[Param(key, params[key]) for key in sorted(missing)])
        tags = dict(self.description["tags"])
        for stage in self.stages.values():
            tags |= stage.get("evidence", {"tags": {}})["tags"] | stage.get("tags", {})
        tags = {key: value for key, value in tags.items() if key not in params and not key.startswith("version.")}
        facts = (f"{scorer(scores).key}_{fact}" for fact in FACTS)
        tags |= {fact: scores[fact] for fact in facts if fact in scores}
        tags["stages"] = ", ".join(f"{name} {stage['status']}" for name, stage in self.stages.items())
        if (self.record.results / "samples.json").exists():
            tags["mlflow.loggedArtifacts"] = json.dumps([{"path": "samples.json", "type": "table"}])
        tags["mlflow.note.content"] = descriptions.of_run(self.description, self.stages, scores)
        tags = {clean(key): str(value)[:5000] for key, value in tags.items()}
        changed = [RunTag(key, value) for key, value in tags.items() if self.run.data.tags.get(key) != value]
        for start in range(0, len(changed), 100):
            self.log(tags=changed[start : start + 100])

    def log_numbers(self) -> None:
        """Set the scores, and what the stages measured, by the names of names.py.

        Of two values of an update MLflow takes the later one, and the larger one of the same time. A value has the same
        time whenever it is sent: a request that MLflow carried out late, for a publisher that no longer lives, has no
        second point.
        """
        from mlflow.entities import Metric

        numbers = {
            name: Metric(name, float(value), self.scores_time, 0)
            for key, value in self.numbers.items()
            if self.scores_time is not None and (name := names.of_score(key)) is not None
        }
        training = graph.training_stage()
        for stage, content in self.stages.items():
            measured = content.get("metrics", {}) | {key: content[key] for key in ("seconds",) if key in content}
            for key, value in measured.items():
                if (name := names.of_stage(stage, key, trains=stage == training)) is not None:
                    numbers.setdefault(clean(name), Metric(clean(name), float(value), content["start"], 0))
        known = self.run.data.metrics
        # `nan` equals itself as text.
        if changed := [each for each in numbers.values() if str(each.value) != str(known.get(each.key))]:
            self.log(metrics=changed)

    @property
    def scores_time(self) -> int | None:
        """When `score` ended, in milliseconds since 1970; the run's creation where DVC had its result; None before."""
        stage = self.stages.get("score", {"status": "cached"})
        time: int | None = self.description["created"] if stage["status"] == "cached" else stage.get("end")
        return time

    def log_history(self) -> None:
        """Send the lines of the history and of the machine's load that MLflow has not yet."""
        from mlflow.entities import Metric

        for path, named in ((self.record.history, names.of_history), (self.record.load, dict)):
            lines, end = read(path, self.noted[path.name])
            points = [
                Metric(clean(key), float(value), self.time(line), line["update"])
                for line in lines
                for key, value in named(line["values"]).items()
            ]
            for start in range(0, len(points), BATCH):
                part = points[start : start + BATCH]
                if start + BATCH < len(points):
                    self.log(metrics=part)
                else:
                    self.noted[path.name] = end
                    self.note(part)

    def time(self, line: Mapping[str, Any]) -> int:
        """Return the time of a line of the history, in milliseconds since 1970.

        It is that of the run's creation and the seconds of training, so that MLflow's relative time counts no
        interruption and is that of the training where DVC restored its curves.
        """
        if "seconds" in line["values"]:
            return int(self.description["created"] + 1000 * line["values"]["seconds"])
        return int(line["time"])

    def log_artifacts(self) -> None:
        """Send the files that are new or have changed: results, configuration, evidence."""
        results = (path for path in self.record.results.glob("*") if not path.name.startswith("."))
        paths = [*results, *(self.record.folder / name for name in EVIDENCE)]
        for path in paths:
            if path.exists() and self.noted["files"].get(path.name) != (state := signature([path])):
                self.client.log_artifact(self.id, str(path))
                self.noted["files"][path.name] = state
                self.note()

    def log_corpora(self) -> None:
        """Set the corpora as inputs, each once its digest and its number of pairs are known.

        `download` counts the pairs. Where a complete run has no counts, its corpora are logged without them.
        """
        from mlflow.entities import Dataset, DatasetInput, InputTag

        path = self.record.results / CORPORA
        if self.noted["corpora"] or not self.record.config.exists():
            return
        if not (path.exists() or self.description["complete"]):
            return
        pairs = read_json(path)["pairs"] if path.exists() else {}
        data = DataSettings.model_validate(read_yaml(self.record.config)["data"])
        logged = self.run.inputs.dataset_inputs if self.run.inputs else []
        known = {corpus.dataset.name for corpus in logged}
        archives = {
            archive.name: archive_cache.known_sha256(archive, self.record.folder.parent.parent)
            for archive in data.archives
        }
        columns = json.dumps(
            {"mlflow_colspec": [{"type": "string", "name": key} for key in (data.source, data.target)]}
        )
        inputs = [
            DatasetInput(
                Dataset(
                    name=text.name,
                    digest=found,
                    source_type="local" if text.source.path else "archive",
                    source=json.dumps({"source": text.source.model_dump(), "target": text.target.model_dump()}),
                    schema=json.dumps({"mlflow_colspec": columns}),
                    profile=json.dumps({"num_rows": pairs[f"{role}.{text.name}"]}) if pairs else None,
                ),
                [InputTag("mlflow.data.context", CONTEXTS[role])],
            )
            for role, text in data.texts
            if text.name not in known and (found := digest(text, archives)) is not None
        ]
        if inputs:
            self.client.log_inputs(self.id, datasets=inputs)
            self.noted["corpora"] = len(known) + len(inputs) == len(data.texts)
            self.note()

    def register_model(self) -> None:
        """Register the model of a complete run that was scored."""
        if (
            not (self.description["complete"] and self.record.model.exists() and self.numbers)
            or self.scores_time is None
        ):
            return
        if self.noted["model"] != (state := signature([self.record.model])):
            configuration = read_yaml(self.record.config)
            sets = {key: value for key, value in self.scores.items() if key.endswith("_set")}
            values = {
                "name": f"wmt-{self.description['pair']}",
                "pair": self.description["pair"],
                "metrics": self.numbers,
                "tags": {key: str(value) for key, value in configuration["run"].items()} | sets,
                "description": descriptions.of_version(configuration, self.scores),
                "search": configuration["search"],
                "time": self.scores_time,
            }
            registry.register(self.client, self.id, self.record.model, values)
            self.noted["model"] = state
            self.note()

    def set_status(self) -> str:
        """Set the run's status and end; returns the status."""
        status, was = self.record.status(), self.run.info
        end = max((stage["end"] for stage in self.stages.values() if "end" in stage), default=None)
        if status == "RUNNING":
            if status != was.status:
                self.changed = True
                self.client.update_run(self.id, status=status)
        elif status != was.status or end not in (None, was.end_time):
            self.changed = True
            self.client.set_terminated(self.id, status, end)
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
