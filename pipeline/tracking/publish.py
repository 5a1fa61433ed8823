"""Bring the MLflow run of the results in this folder to completeness. Doing it twice changes nothing."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from nmt.common.files import read_yaml
from nmt.common.processes import is_held
from nmt.task import further_scores, task_in
from nmt.text.parallel_text import read_lines
from pipeline.config import graph, paths
from pipeline.config.paths import CHAIN, CONFIG, CURVES, SCORES, VALIDATION, read_json, read_table, state_root
from pipeline.config.resolution import changed
from pipeline.report.scores import identities
from pipeline.tracking import registry, server, source, view
from pipeline.tracking.follow import Points

if TYPE_CHECKING:
    from mlflow import MlflowClient

SIZES = ("params", "vocabulary", "updates", "averaged_checkpoints", "devices", "sustained_flops")
"""Scores that describe the run and do not rate it: they are parameters in MLflow, and no charts."""


def complete(client: MlflowClient, ran: bool) -> str:
    """Complete the run of the results in this folder, which the code here made if it `ran`; return the run's name."""
    run = server.open_run(client, read_json(CHAIN)["state"])
    configuration, scores = read_yaml(CONFIG), read_json(SCORES)
    points = Points(client, run)
    for table in (CURVES, VALIDATION):
        points.send(read_table(table))
    if paths.VALIDATION_OUTPUTS.exists():
        seconds = {row["update"]: row["seconds"] for row in read_table(VALIDATION)}
        written = map(json.loads, read_lines(paths.VALIDATION_OUTPUTS))
        points.send_sample({**record, "seconds": seconds.get(record["update"], 0.0)} for record in written)
    describe(client, run.info.run_id, configuration, scores)
    made = [out for stage in graph.stages().values() for out in stage.outs if out.startswith("results/")]
    # In the last stage dvc.lock lacks that stage's entry: `wmt publish` sends it again.
    for path in filter(os.path.exists, (*made, "dvc.lock")):
        client.log_artifact(run.info.run_id, path)
    view.show(client, configuration["run"]["pair"])
    if ran or "commit" not in run.data.tags:
        source.send(client, run.info.run_id)
    registry.register(client, run.info.run_id, configuration, scores | identities(configuration["data"], scores))
    if run.info.status != "FINISHED":
        client.set_terminated(run.info.run_id)
    return f"{run.info.run_name}: published"


def finish(stage: str) -> None:
    """Complete the run after the last stage of a pipeline, for `PATIENCE` seconds at most."""
    if stage == next(reversed(graph.stages()), None):
        with server.beside(stage, lambda _: complete(server.connect(), ran=True)):
            pass


def end(stage: str, status: str) -> None:
    """Set the status of the run, if MLflow has it, when a stage after the training has not ended well."""
    before = graph.upstream(stage, graph.stages())[:-1]
    if "train" in before and CHAIN.exists():

        def mark(_: object) -> None:
            client = server.connect()
            if run := server.find_run(client, read_json(CHAIN)["state"]):
                client.set_terminated(run.info.run_id, status)

        with server.beside(stage, mark):
            pass


def end_abandoned(client: MlflowClient) -> Iterator[str]:
    """Set runs whose training is RUNNING for MLflow, but held by no process of this machine, to KILLED."""
    for run in server.runs(client, "attributes.status = 'RUNNING'"):
        training = run.data.tags.get(server.TRAINING_TAG)
        folder = state_root() / "train" / str(training)
        finished = (folder / "done.json").exists()  # Its model may still be sent.
        if training and not finished and folder.is_dir() and not is_held(folder / "lock"):
            client.set_terminated(run.info.run_id, "KILLED")
            yield f"{run.info.run_name}: killed"


def publish(*, current: bool) -> Iterator[str]:
    """Complete the run of the results in this folder if they are `current`, and end abandoned ones.

    Yields a line for each. Raises InputError where MLflow cannot be reached.
    """
    with server.session() as client:
        if current and SCORES.exists() and CHAIN.exists():
            yield complete(client, ran=False)
        yield from end_abandoned(client)


def describe(client: MlflowClient, run: str, configuration: Mapping[str, Any], scores: Mapping[str, Any]) -> None:
    """Set parameters (row, pair, corpus, seed, what differs from the row, sizes), scores and tags.

    Each set's headline score, and BLEU on lower-cased Moses tokens, are metrics. All other numbers are tags: a metric
    would get a chart of its own, and a parameter could not change when the run is scored again. A score that MLflow
    shows is not sent again, and the validation perplexity not at all: it is the end of a curve, which `Points` sends.
    """
    from mlflow.entities import Metric, Param, RunTag

    # The prefix sorts settings after row, pair, corpus and seed: MLflow sorts parameters by name.
    params = {**configuration["run"], **{f"settings.{key}": value for key, value in changed(configuration).items()}}
    params |= {key: scores[key] for key in SIZES if key in scores}
    known = client.get_run(run).data
    rated = task_in(scores).key, f"valid_{task_in(scores).key}", "bleu_lowercased_moses"
    numbers = {key: scores[key] for key in rated if key in scores} | further_scores(scores)
    numbers = {key: round(float(value), 2) for key, value in numbers.items()}
    # Compared as text, because nan != nan.
    new = [key for key in numbers if str(numbers[key]) != str(known.metrics.get(key))]
    now = int(1000 * time.time())
    apart = (*numbers, *SIZES, "valid_ppl", "sets")
    others = {key: value for key, value in scores.items() if value is not None and key not in apart}
    tags = {key: f"{value:.6g}" if isinstance(value, float) else str(value) for key, value in others.items()}
    tags |= {"train_hours": f"{scores['train_seconds'] / 3600:.3g}"} if "train_seconds" in scores else {}
    client.log_batch(
        run,
        metrics=[Metric(key, numbers[key], now, int(scores["updates"])) for key in new],
        params=[Param(key, str(value)) for key, value in params.items() if key not in known.params],
        tags=[RunTag(key, value) for key, value in tags.items()],
    )
