"""The flows with a real Prefect server, worker and MLflow, as `make serve` starts them, on a shrunken sample."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator

import pytest
from clones import SHRUNKEN, STAGES, Clone
from mlflow import MlflowClient
from orchestra import Orchestra, until

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def orchestra(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orchestra]:
    clone = Clone(tmp_path_factory.mktemp("clone"))
    # A change that is not committed travels with the runs; this one says where their code stands.
    clone.params(overrides=SHRUNKEN)
    path = clone.folder / "nmt/corpus.py"
    path.write_text(path.read_text() + '\n\nprint("code of", __file__)\n')
    orchestra = Orchestra(clone, tmp_path_factory.mktemp("home"))
    with orchestra.serving():
        yield orchestra


@pytest.fixture(scope="module")
def first(orchestra: Orchestra) -> str:
    return orchestra.completed()


def test_every_stage_is_a_task_that_says_that_it_ran(orchestra: Orchestra, first: str) -> None:
    assert list(orchestra.how(first).items()) == [(name, "Ran") for name in STAGES]
    assert orchestra.run(first)["name"] == f"sample-{first[:8]}"
    until(lambda: "dvc exp apply" in orchestra.messages(first), "the last line of the log")
    assert re.findall(r"^Running stage '(\w+)':$", orchestra.messages(first), re.MULTILINE) == STAGES


def test_code_runs_from_the_copy_with_changes_that_are_not_committed(orchestra: Orchestra, first: str) -> None:
    found = set(re.findall(r"code of (\S+)", orchestra.messages(first)))
    assert found == {str(orchestra.clone.folder / f"work/runs/sample-{first[:8]}/repository/nmt/corpus.py")}


def test_the_results_come_back_as_an_experiment(orchestra: Orchestra, first: str) -> None:
    """The same BLEU in metrics.json, Prefect and MLflow; the copy is gone."""
    name = f"sample-{first[:8]}"
    clone = orchestra.clone
    assert not (clone.folder / "work/runs" / name).exists()
    shown = json.loads(clone.run("dvc", "exp", "show", "--json").stdout)
    names = [experiment["name"] for rev in shown for experiment in rev.get("experiments") or []]
    assert name in names
    applied = clone.run("dvc", "exp", "apply", name)
    assert applied.returncode == 0, applied.stderr
    metrics = json.loads((clone.folder / "results/metrics.json").read_text())
    artifacts = orchestra.artifacts(first)
    assert artifacts["wmt-en-de-sample-training"]["data"] == 100
    assert "update 12 of 12" in artifacts["wmt-en-de-sample-training"]["description"]
    table = json.loads(artifacts["wmt-en-de-sample-stages"]["data"])
    assert [row["stage"] for row in table] == STAGES
    markdown = artifacts["wmt-en-de-sample-bleu"]["data"]
    assert f"{metrics['bleu']:.2f} (" in markdown
    assert "| 27.3 |" in markdown
    client = MlflowClient(f"http://127.0.0.1:{orchestra.mlflow}")
    experiment = client.get_experiment_by_name("wmt-en-de")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id], f"tags.WMT_RUN = '{first}'")
    assert run.info.status == "FINISHED"
    assert run.data.metrics["bleu"] == metrics["bleu"]


def test_a_users_mistake_is_one_sentence_and_not_tried_again(orchestra: Orchestra) -> None:
    identity = orchestra.deploy(row="C-N3")
    run = orchestra.ended(identity)
    assert (run["state_type"], "did you mean" in run["state"]["message"]) == ("FAILED", True)
    assert {name: (task["state_name"], task["run_count"]) for name, task in orchestra.stages(identity).items()} == {
        "resolve": ("Refused", 1)
    }


def test_what_git_does_not_track_is_refused(orchestra: Orchestra) -> None:
    path = orchestra.clone.folder / "data/catalog/mine.yaml"
    path.write_text("extends: sample\ndescription: Mine.\n")
    run = orchestra.ended(orchestra.deploy(corpus="mine", target="download"))
    assert run["state_name"] == "Refused"
    assert "`git add data/catalog/mine.yaml`" in run["state"]["message"]
    subprocess.run(["git", "add", path], cwd=orchestra.clone.folder, check=True)
    identity = orchestra.deploy(corpus="mine", target="download")
    assert orchestra.ended(identity)["state_type"] == "COMPLETED", orchestra.messages(identity)
    assert list(orchestra.how(identity)) == ["resolve", "download"]
