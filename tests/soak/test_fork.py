"""`wmt fork` through DVC and MLflow: an experiment of its own, and a child of the run that it was made from."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from clones import SHRUNKEN, Clone
from mlflow import MlflowClient

pytestmark = pytest.mark.timeout(1800)


def test_a_fork_is_an_experiment_and_a_child_run(tmp_path: Path) -> None:
    clone = Clone(tmp_path / "clone")
    training = {**SHRUNKEN["training"], "verify_every": 2, "keep_states": 2}
    clone.params(overrides={**SHRUNKEN, "training": training})
    clone.repro()
    (run,) = [path.parent.name for path in clone.folder.glob("work/runs/*/run.json")]
    wmt = sys.executable, "-m", "pipeline.cli"
    result = clone.run(*wmt, "fork", run, "--at", "8", "-S", "training.learning_rate_scale=0.5")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "resuming after update 8 of 12" in result.stdout
    name, _, scores = result.stdout.splitlines()[-1].partition(": ")
    assert "; validation perplexity " in scores
    shown = json.loads(clone.run("dvc", "exp", "show", "--json").stdout)
    experiments = {each["name"] for commit in shown for each in commit.get("experiments") or []}
    assert experiments == {name}
    client = MlflowClient(f"sqlite:///{clone.folder}/work/mlflow.db")
    (experiment,) = client.search_experiments(filter_string="name = 'wmt-en-de'")
    runs = {each.info.run_name: each for each in client.search_runs([experiment.experiment_id])}
    child = runs[f"sample-sample-s1 {name}"]
    assert child.data.tags["mlflow.parentRunId"] == runs["sample-sample-s1"].info.run_id
    assert child.data.params["training.learning_rate_scale"] == "0.5"
    assert child.data.params["training.fork.update"] == "8"
    client._tracking_client.store.engine.dispose()
    # The parent is as it was, and can be checked.
    checked = clone.run(*wmt, "verify", run, "--no-translate")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    checked = clone.run(*wmt, "verify", name, "--no-translate")
    assert checked.returncode == 0, checked.stdout + checked.stderr
