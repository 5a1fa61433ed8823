"""Prefect artifacts of a run: progress of the training, times of the stages, scores beside the paper's, links."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast
from uuid import UUID

from prefect import get_run_logger
from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from nmt.common.files import read_yaml
from pipeline.common import paths, stage
from pipeline.common.paths import CONFIG
from pipeline.common.settings import DataSettings, RunSettings
from pipeline.config import graph, resolution
from pipeline.config.scorer import scorer
from pipeline.reporting import page
from pipeline.reporting.scores import results
from pipeline.runs.pipeline_run import Run
from pipeline.runs.record import Record, read
from pipeline.tracking import views
from pipeline.training.progress import Point, remaining

INTERVAL = 5.0
"""Seconds between two updates of the progress artifact."""
FORMATS: dict[str, Callable[[float], str]] = {
    "ppl": "perplexity {:.2f}".format,
    "valid_ppl": "validation perplexity {:.2f}".format,
    "tokens_per_second": "{:,.0f} tokens/s".format,
    "learning_rate": "learning rate {:.2e}".format,
}


class Progress:
    """The progress of a run's training, read from the history in the run's record."""

    def __init__(self, run: Run) -> None:
        self.run, self.history = run, Record(run.folder).history
        self.offset = self.update = 0
        self.first: Point | None = None
        self.values: dict[str, float] = {}
        self.artifact: UUID | None = None
        self.text = ""
        self.due = 0.0

    def publish(self) -> None:
        """Update the artifact if it is due and training has logged something new."""
        if time.monotonic() < self.due:
            return
        self.due = time.monotonic() + INTERVAL
        lines, self.offset = read(self.history, self.offset)
        for line in lines:
            self.update = int(line["update"])
            self.values.update(line["values"])
            self.first = self.first or (self.update, self.values.get("seconds", 0.0))
        if not self.update:
            return
        updates = read_yaml(self.run.copy / CONFIG)["training"]["updates"]
        percent = 100 * min(1.0, self.update / updates)
        values = [form(self.values[name]) for name, form in FORMATS.items() if name in self.values]
        last = self.update, self.values.get("seconds", 0.0)
        left = remaining(self.first or last, last, updates)
        text = ", ".join([f"update {self.update:,} of {updates:,}", *left, *values])
        if text == self.text:
            return
        self.text = text
        with failures_logged():
            if self.artifact is None:
                # The declared return type includes the coroutine that asynchronous callers get.
                self.artifact = cast(UUID, create_progress_artifact(percent, key(self.run, "training"), text))
            else:
                update_progress_artifact(self.artifact, percent, text)


@contextmanager
def progress(run: Run, name: str) -> Iterator[Callable[[], None]]:
    """Yield a function that publishes the progress of the stage `name`, to be called often; a training has some."""
    if name != graph.training_stage(run.copy / paths.DVC_YAML):
        yield lambda: None
        return
    training = Progress(run)
    try:
        yield training.publish
    finally:
        training.due = 0.0
        training.publish()


@contextmanager
def failures_logged() -> Iterator[None]:
    """Log a failure to write an artifact as a warning: it must not fail the run."""
    try:
        yield
    except Exception as error:
        get_run_logger().warning("an artifact could not be written: %s", error)


def key(run: Run, what: str) -> str:
    """Return an artifact's key. Runs of the same pair and row share it: Prefect lists their artifacts as versions."""
    params = resolution.read_params(run.copy / paths.PARAMS)
    return re.sub(r"[^a-z0-9]+", "-", f"wmt-{params['pair']}-{params['row']}-{what}".lower()).strip("-")


def publish_times(run: Run, rows: Sequence[dict[str, Any]]) -> None:
    """Write the table of the run's stages."""
    with failures_logged():
        create_table_artifact(list(rows), key(run, "stages"), f"Stages of {run.name}")


def publish_scores(run: Run) -> None:
    """Write the report's table of results, if the run has scored anything."""
    metrics = run.copy / paths.SCORES
    if not metrics.exists():
        return
    config = read_yaml(run.copy / CONFIG)
    settings, data = RunSettings.model_validate(config["run"]), DataSettings.model_validate(config["data"])
    scores = stage.read_json(metrics)
    markdown, score = page.markdown(results(settings, data, scores), paths.FIGURES.name), scorer(scores)
    with failures_logged():
        create_markdown_artifact(markdown, key(run, score.key), f"{score.title} of {run.name}")


def publish_links(run: Run) -> None:
    """Write where the run is in MLflow, in DVC and on disk."""
    record = Record(run.folder)
    published, report_html = record.published(), record.results / paths.REPORT_HTML.name
    lines = [f"- log and results: `{run.folder}`", f"- DVC: `dvc exp apply {run.name}`"]
    if report_html.exists():
        lines.insert(0, f"- report: `{report_html}`")
    if str(published.get("uri")).startswith("http"):
        page_, report_ = (views.run_address(published, tab) for tab in ("", f"/artifacts/{report_html.name}"))
        lines.insert(0, f"- MLflow: [the run]({page_}), [its report]({report_})")
    with failures_logged():
        create_markdown_artifact("\n".join(lines), key(run, "links"), f"Where {run.name} is")
