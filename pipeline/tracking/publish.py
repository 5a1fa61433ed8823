"""Bring the MLflow run of the results in this folder to completeness. Doing it twice changes nothing."""

from __future__ import annotations

import csv
import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt.common.files import read_yaml, sha256_of
from nmt.common.processes import is_held
from pipeline.config import graph
from pipeline.config.paths import (
    BINNED_STATS,
    CHAIN,
    CONFIG,
    CURVES,
    SCORES,
    TOKENIZED,
    VALIDATION,
    read_json,
    state_root,
)
from pipeline.config.resolution import changed
from pipeline.config.tasks import task_in
from pipeline.tracking import registry, server, source
from pipeline.tracking.follow import Points

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

PUBLISHED = "wmt.results"
"""Tag of a run that has everything: the hash of its files."""
SIZES = ("params", "vocabulary", "updates")
"""Scores that describe the run and measure nothing: like the counts of the texts, they are parameters in MLflow."""
FACTS = ("set", "signature", "model")
"""What tags say of a score."""


def complete(client: MlflowClient) -> str:
    """Complete the run of the results in this folder; return its name, and whether that changed anything."""
    run = server.open_run(client, read_json(CHAIN, "state")["state"])
    name, digest = run.info.run_name, files_digest()
    if run.data.tags.get(PUBLISHED) == digest:
        if run.info.status != "FINISHED":
            client.set_terminated(run.info.run_id)
        return f"{name}: up to date"
    configuration, scores = read_yaml(CONFIG), read_json(SCORES)
    describe(client, run, configuration, scores)
    points = Points(client, run)
    for table in (CURVES, VALIDATION):
        points.send(curve(table))
    log_numbers(client, run, scores)
    log_artifacts(client, run)
    registry.register(client, run.info.run_id, configuration, scores)
    client.set_tag(run.info.run_id, PUBLISHED, digest)
    client.set_terminated(run.info.run_id)
    return f"{name}: published"


def finish(stage: str) -> None:
    """Complete the run after the last stage of a pipeline, for `PATIENCE` seconds at most."""
    if stage == graph.last_stage():
        server.attempt(stage, lambda: complete(server.connect()))


def end(stage: str, status: str) -> None:
    """Set the status of the run, if MLflow has it, when a stage after the training has not ended well."""
    before = graph.upstream(stage, graph.stages())[:-1]
    if graph.training_stage() in before and CHAIN.exists():

        def mark() -> None:
            client = server.connect()
            if run := server.find_run(client, read_json(CHAIN, "state")["state"]):
                client.set_terminated(run.info.run_id, status)

        server.attempt(stage, mark)


def end_abandoned(client: MlflowClient) -> Iterator[str]:
    """Set runs whose training is RUNNING for MLflow, but held by no process of this machine, to KILLED."""
    for run in server.runs(client, "attributes.status = 'RUNNING'"):
        state = state_root() / "train" / run.data.tags.get(server.TRAINING, "of another tool")
        if state.is_dir() and not is_held(state / "lock"):
            client.set_terminated(run.info.run_id, "KILLED")
            yield f"{run.info.run_name}: killed"


def publish() -> Iterator[str]:
    """Complete the run of the results in this folder and end abandoned ones, yielding a line for each.

    Raises InputError where MLflow cannot be reached.
    """
    with server.session() as client:
        if SCORES.exists() and CHAIN.exists():
            yield complete(client)
        yield from end_abandoned(client)


def outputs() -> list[Path]:
    """Return what stages leave in results/, and DVC's lock file.

    In the last stage, the lock file lacks that stage's entry: `wmt publish` sends it again.
    """
    paths = [Path(out) for stage in graph.stages().values() for out in stage.outs if out.startswith("results/")]
    return [path for path in (*paths, Path("dvc.lock")) if path.exists()]


def files_digest() -> str:
    files = (file for path in outputs() for file in ([path] if path.is_file() else sorted(path.rglob("*"))))
    lines = (f"{file} {sha256_of(file)}\n" for file in files if file.is_file())
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


def curve(table: Path) -> Iterator[dict[str, float]]:
    """Yield the records of a table that `train` wrote, with their update."""
    with table.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            yield {name: float(value) for name, value in row.items()}


def describe(client: MlflowClient, run: Run, configuration: Mapping[str, Any], scores: Mapping[str, Any]) -> None:
    """Set parameters (row, pair, corpus, seed, what differs from the row, sizes) and tags."""
    from mlflow.entities import Param, RunTag

    # With a prefix: MLflow sorts parameters by name, and what names the run comes first.
    params = {**configuration["run"], **{f"settings.{key}": value for key, value in changed(configuration).items()}}
    params |= {key: scores[key] for key in SIZES if key in scores}
    tokenized, binned = (read_json(path) if path.exists() else {} for path in (TOKENIZED / "stats.json", BINNED_STATS))
    counts = {"pairs_raw": tokenized.get("pairs"), "pairs_kept": tokenized.get("kept"), "pairs": binned.get("pairs")}
    counts |= {key: binned.get(key) for key in ("source_tokens", "target_tokens")}
    params |= {key: value for key, value in counts.items() if value is not None}
    missing = sorted(params.keys() - run.data.params.keys())
    by = task_in(scores)
    facts = (f"{prefix}{by.key}_{fact}" for prefix in ("", "valid_") for fact in FACTS)
    tags = source.tags() | {fact: scores[fact] for fact in facts if fact in scores}
    client.log_batch(
        run.info.run_id,
        params=[Param(key, str(params[key])[:6000]) for key in missing],
        tags=[RunTag(key, str(value)[:5000]) for key, value in tags.items()],
    )


def log_numbers(client: MlflowClient, run: Run, scores: Mapping[str, Any]) -> None:
    """Set the scores, with two digits, but for those that have a curve, at the time when the training had ended.

    Of two values MLflow takes the later one; a number that is there already is not sent again.
    """
    from mlflow.entities import Metric

    curves = {name for table in (CURVES, VALIDATION) for record in curve(table) for name in record}
    known, identity = client.get_run(run.info.run_id).data.metrics, run.info.run_id
    end = run.info.start_time + int(1000 * scores["train_seconds"])
    metrics = []
    for key in scores.keys() - {*SIZES, *curves}:
        value = scores[key]
        if isinstance(value, float) and key.startswith(task_in(scores).numbers):
            value = round(value, 2)
        # `nan` equals itself as text.
        if isinstance(value, int | float) and str(float(value)) != str(known.get(key)):
            earlier = client.get_metric_history(identity, key) if key in known else []
            time = max([end, *(point.timestamp + 1 for point in earlier)])
            metrics.append(Metric(key, float(value), time, 0))
    client.log_batch(identity, metrics=metrics)


def log_artifacts(client: MlflowClient, run: Run) -> None:
    """Send the results, dvc.lock, and the patch where tracked files differ from the commit."""
    for path in outputs():
        client.log_artifact(run.info.run_id, str(path))
    with suppress(ChildProcessError, FileNotFoundError), tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "differences.patch")
        if path.write_bytes(source.difference(*source.CODE)) > 0:
            client.log_artifact(run.info.run_id, str(path))
