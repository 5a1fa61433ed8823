"""What MLflow's page of a pair shows: the run table with the columns that compare runs, and their charts.

MLflow's front end keeps columns and charts in each browser. It takes both from a tag of the experiment where the
address names the tag's key (`viewStateShareKey`), as its button "Share" does. Read in the front end of MLflow 3.17;
a test in tests/end_to_end/test_flows.py reads the columns off the page.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from nmt.task import CHRF, TRANSLATION, Task, task_of

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

KEY = "wmt"  # name of the shared view
CHARTS = "&compareRunsMode=CHART"  # the end of an address that shows charts in place of the table
DIFFERING = 8  # columns of settings that differ between runs, at most


def show(client: MlflowClient, pair: str) -> str:
    """Set the view and the main score of a pair's experiment; return the address of its run table, without the host.

    With `CHARTS` behind it, it is that of their charts. Without an experiment it is the first page.
    """
    experiment = client.get_experiment_by_name(f"wmt-{pair}")
    if experiment is None or experiment.lifecycle_stage == "deleted":
        return "/"
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    task = task_of(pair)
    metrics = {key for run in runs for key in run.data.metrics}
    if task is TRANSLATION and CHRF.key in metrics and task.key not in metrics:
        task = CHRF
    content = json.dumps(state(runs, task))
    client.set_experiment_tag(experiment.experiment_id, f"mlflow.sharedViewState.{KEY}", content)
    client.set_experiment_tag(experiment.experiment_id, "mlflow.experiment.primaryMetric.name", f"valid_{task.key}")
    return f"/#/experiments/{experiment.experiment_id}/runs?workflowType=machine_learning&viewStateShareKey={KEY}"


def state(runs: list[Run], task: Task) -> dict[str, Any]:
    """Return the view: columns, order by the score on the test set, and first the charts of loss, perplexity, score."""
    settings = {key for run in runs for key in run.data.params if key.startswith("settings.")}
    differing = sorted(key for key in settings if len({run.data.params.get(key) for run in runs}) > 1)[:DIFFERING]
    columns = [
        *(f"params.`{key}`" for key in ("row", "corpus", "seed", *differing, "updates")),
        *(f"metrics.`{key}`" for key in (task.key, "valid_ppl")),
        *(f"tags.`{key}`" for key in ("train_hours", "train_flops_counted")),
    ]
    drawn = {"metricSectionId": "first", "runsCountToCompare": 10, "xAxisKey": "step", "lineSmoothness": 0}
    charts = [
        {"uuid": key, "metricKey": key, "selectedMetricKeys": [key], "type": kind, "scaleType": scale, **drawn}
        for key, kind, scale in (("loss", "LINE", "linear"), ("valid_ppl", "LINE", "log"), (task.key, "BAR", "linear"))
    ]
    sections = [
        {"uuid": "first", "name": "Loss, perplexity, score", "display": True, "isReordered": True},
        {"uuid": "others", "name": "Model metrics", "display": False},
    ]
    return {
        "orderByKey": f"metrics.`{task.key}`",
        "orderByAsc": False,
        "selectedColumns": columns,
        "compareRunCharts": charts,
        "compareRunSections": sections,
    }
