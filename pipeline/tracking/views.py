"""What MLflow's page of an experiment shows: a description and saved views of the list of runs.

MLflow keeps a saved view as a tag of the experiment, and opens it by the address `?viewStateShareKey=<id>`. A view that
the user has changed or made is left alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pipeline.config.scorer import scorer_of

BEST, CURVES = "best-runs", "curves-by-time"
"""Ids of the saved views."""
NAMES = {BEST: "Best runs", CURVES: "Curves by time"}
DESCRIPTION = (
    "Compare runs by `valid/`, the last checkpoint on the validation set; `test/` is the average on the test set. "
    "Views: *Best runs* and *Curves by time*."
)


def experiment_name(pair: str) -> str:
    """Return the name of a language pair's experiment."""
    return f"wmt-{pair}"


def tags(pair: str) -> dict[str, str]:
    """Return the tags of the experiment of a language pair."""
    by = scorer_of(pair)
    views = {BEST: _best(by.key), CURVES: _curves(by.key)}
    return {
        "mlflow.note.content": DESCRIPTION,
        "mlflow.experimentKind": "custom_model_development",  # Model training, not GenAI.
        "mlflow.experiment.primaryMetric.name": f"valid/{by.key}",
        **{
            f"mlflow.sharedViewState.{key}": json.dumps(
                {"name": NAMES[key], "createdAt": 0, "updatedAt": 0, "state": json.dumps(state)}
            )
            for key, state in views.items()
        },
    }


def address(server: str, experiment: str) -> str:
    """Return the address of an experiment's page with the view *Best runs*."""
    return f"{server}/#/experiments/{experiment}/runs?workflowType=machine_learning&viewStateShareKey={BEST}"


def run_address(published: Mapping[str, Any], tab: str = "") -> str:
    """Return the address of a run's page, or of a tab of it such as `/artifacts/report.html`.

    `published`: what Record.published returns of a run that was published to a server.
    """
    run = f"experiments/{published['experiment']}/runs/{published['run']}{tab}"
    return f"{published['uri'].rstrip('/')}/#/{run}?workflowType=machine_learning"


def _best(score: str) -> Mapping[str, Any]:
    """Return the state of the list: scores and cost, what ran, then the rest; the best on the validation set first."""
    columns = [
        *(f"metrics.`{name}`" for name in (f"test/{score}", f"valid/{score}", "valid/ppl", "train/hours")),
        *(f"params.`{name}`" for name in ("row", "corpus", "seed", "parameters")),
    ]
    attributes = [f"attributes.`{name}`" for name in ("Dataset", "Version", "Models")]
    return {
        "selectedColumns": [*columns, *attributes],
        "columnOrder": [*columns, "attributes.start_time", "duration", *attributes],
        "orderByKey": f"metrics.`valid/{score}`",
        "orderByAsc": False,
    }


def _curves(score: str) -> Mapping[str, Any]:
    """Return the same with every curve over the time of training; constants and the machine's load are folded."""
    # MLflow shows hours where a curve is that long. "time-relative-hours" labels the axis so, and draws updates.
    axis = {"xAxisKey": "time-relative", "lineSmoothness": 0, "selectedXAxisMetricKey": ""}
    generated = {"isReordered": False, "deleted": False, "isGenerated": True}
    sections = [
        {"uuid": name, "name": name, "display": name in {"valid", "train"}, **generated}
        for name in ("valid", "train", "test", "data", "seconds", "Model metrics", "System metrics")
    ]
    # MLflow adds the charts of all metrics to the sections of their prefixes.
    charts = {"compareRunCharts": [], "compareRunSections": sections, "isAccordionReordered": True}
    return {**_best(score), **charts, "globalLineChartConfig": axis}
