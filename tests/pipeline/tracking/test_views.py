"""MLflow's page of an experiment: saved views in MLflow's form, which name numbers and parameters that runs have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.config.scorer import BLEU, F1
from pipeline.tracking import names, views


def states(pair: str) -> dict[str, dict[str, Any]]:
    """Name -> state of each saved view, opened as MLflow's page does."""
    prefix = "mlflow.sharedViewState."
    tags = {key.removeprefix(prefix): value for key, value in views.tags(pair).items() if key.startswith(prefix)}
    saved = [json.loads(value) for value in tags.values()]
    assert all(isinstance(view["createdAt"], int) and isinstance(view["state"], str) for view in saved)
    assert tags.keys() == {views.BEST, views.CURVES}
    return {view["name"]: json.loads(view["state"]) for view in saved}


@pytest.mark.parametrize(("pair", "by"), [("en-de", BLEU), ("en-fr", BLEU), ("en-tree", F1)])
def test_the_best_run_on_the_validation_set_comes_first_with_scores_and_cost_in_front(pair: str, by: Any) -> None:
    state = states(pair)["Best runs"]
    scores = [f"metrics.`{names.of_score(key)}`" for key in (by.key, f"{by.key}_valid")]
    named = names.of_history({"valid_ppl": 1.0}) | names.of_history({"seconds": 1.0})
    curves = [f"metrics.`{name}`" for name in named]
    assert state["columnOrder"][:4] == [*scores, *curves]
    assert set(state["selectedColumns"]) < set(state["columnOrder"])
    assert (state["orderByKey"], state["orderByAsc"]) == (scores[1], False), "never by the test set"
    assert views.tags(pair)["mlflow.experiment.primaryMetric.name"] == f"valid/{by.key}"


def test_curves_are_drawn_over_time_and_open_before_constants() -> None:
    state = states("en-de")["Curves by time"]
    assert state["globalLineChartConfig"]["xAxisKey"] == "time-relative"
    sections = {section["name"]: section["display"] for section in state["compareRunSections"]}
    assert [name for name, is_open in sections.items() if is_open] == list(sections)[:2] == ["valid", "train"]


def test_addresses_open_on_model_training() -> None:
    published = {"uri": "http://127.0.0.1:5000/", "experiment": "1", "run": "abc"}
    page = "http://127.0.0.1:5000/#/experiments/1/runs"
    assert views.address("http://127.0.0.1:5000", "1") == (
        f"{page}?workflowType=machine_learning&viewStateShareKey=best-runs"
    )
    assert views.run_address(published, "/artifacts/report.html") == (
        f"{page}/abc/artifacts/report.html?workflowType=machine_learning"
    )
