"""The flows with a real Prefect server, worker and MLflow, as `make serve` starts them, on a shrunken sample."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from clones import SHRUNKEN, STAGES, Clone
from orchestra import Json, Orchestra, listening, until

pytestmark = pytest.mark.timeout(900)
CATALOG = "data/catalog/mine.yaml"


@pytest.fixture(scope="module")
def orchestra(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orchestra]:
    clone = Clone(tmp_path_factory.mktemp("clone"))
    # A change that is not committed travels with the runs; this one says where their code stands.
    clone.params(overrides=SHRUNKEN)
    path = clone.folder / "nmt/text/parallel_text.py"
    path.write_text(path.read_text() + '\n\nprint("code of", __file__)\n')
    # Git does not track it, and the flows' form offers it.
    (clone.folder / CATALOG).write_text("extends: sample\ndescription: Mine.\n")
    # The example of a schedule, but none that starts days of work.
    deployments = clone.folder / "infra/prefect.yaml"
    deployments.write_text(deployments.read_text().replace("# schedules: [{", "schedules: [{active: false, "))
    orchestra = Orchestra(clone, tmp_path_factory.mktemp("home"))
    with orchestra.serving():
        yield orchestra


@pytest.fixture(scope="module")
def first(orchestra: Orchestra) -> str:
    """The id of a finished run into French, with word pieces."""
    overrides = {"training": {"updates": 8, "checkpoint_every": 4}, "subwords": {"vocabulary": 600}}
    return orchestra.completed("-p", f"overrides={json.dumps(overrides)}", pair="en-fr")


def test_every_stage_is_a_task_that_says_that_it_ran(orchestra: Orchestra, first: str) -> None:
    assert list(orchestra.how(first).items()) == [(name, "Ran") for name in STAGES]
    assert orchestra.run(first)["name"] == f"sample-en-fr-{first[-8:]}"
    until(lambda: "dvc exp apply" in orchestra.messages(first), "the last line of the log")
    assert re.findall(r"^Running stage '(\w+)':$", orchestra.messages(first), re.MULTILINE) == STAGES


def test_code_runs_from_the_copy_with_changes_that_are_not_committed(orchestra: Orchestra, first: str) -> None:
    found = set(re.findall(r"code of (\S+)", orchestra.messages(first)))
    assert found == {
        str(orchestra.clone.folder / f"work/runs/sample-en-fr-{first[-8:]}/repository/nmt/text/parallel_text.py")
    }


def test_the_results_come_back_as_an_experiment(orchestra: Orchestra, first: str) -> None:
    """The same BLEU in metrics.json, Prefect and MLflow; the copy is gone, the record stays."""
    name = f"sample-en-fr-{first[-8:]}"
    clone = orchestra.clone
    assert not (clone.folder / "work/runs" / name / "repository").exists()
    assert (clone.folder / "work/runs" / name / "stages/report.json").exists()
    assert name in experiments(clone)
    applied = clone.run("dvc", "exp", "apply", name)
    assert applied.returncode == 0, applied.stderr
    assert clone.files("data/subwords") == {"data/subwords/subwords.yaml", "data/subwords/wordpieces.model"}
    assert (clone.folder / "results/translations/sampletest.average.fr").exists()
    metrics = json.loads((clone.folder / "results/metrics.json").read_text())
    artifacts = orchestra.artifacts(first)
    assert artifacts["wmt-en-fr-sample-training"]["data"] == 100
    assert "update 8 of 8" in artifacts["wmt-en-fr-sample-training"]["description"]
    table = json.loads(artifacts["wmt-en-fr-sample-stages"]["data"])
    assert [row["stage"] for row in table] == STAGES
    markdown = artifacts["wmt-en-fr-sample-bleu"]["data"]
    assert f"{metrics['bleu']:.2f} (" in markdown
    # The paper scored other text.
    assert "| 38.1 |" not in markdown
    from mlflow import MlflowClient  # It takes a second, which each of pytest's processes would spend on collecting.

    client = MlflowClient(f"http://127.0.0.1:{orchestra.mlflow}")
    experiment = client.get_experiment_by_name("wmt-en-fr")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id], f"tags.`prefect.flow_run_id` = '{first}'")
    assert (run.info.run_name, run.info.status) == (f"sample-sample-s1 {name}", "FINISHED")
    assert run.data.metrics["test/bleu"] == metrics["bleu"]
    assert f"/runs/{run.info.run_id}/artifacts/report.html?" in artifacts["wmt-en-fr-sample-links"]["data"]


def experiments(clone: Clone) -> set[str]:
    """The names of DVC's experiments: Git has them as references, and `dvc exp show` takes seconds."""
    listed = clone.run("git", "for-each-ref", "--format=%(refname)", "refs/exps").stdout
    return {reference.split("/")[-1] for reference in listed.split()}


SCHEDULED = {
    "en-de": ({"row": "base", "corpus": "wmt14"}, {"row": "sample"}),
    "en-tree": ({"row": "parse-wsj", "corpus": "wsj"}, {"row": "parse-sample", "corpus": "sample-trees"}),
}
"""The parameters of a pair's schedule in infra/prefect.yaml, and those that it has in these tests."""


@pytest.fixture(scope="module")
def scheduled(orchestra: Orchestra) -> dict[str, Json]:
    """A run of each pair that its schedule has made, at the same second, once it is over."""
    first = datetime.now(UTC) + timedelta(seconds=8)
    # The schedules are deleted before a second run, which takes as long as the first one.
    soon = {"active": True, "schedule": {"interval": 120, "anchor_date": first.isoformat()}}
    deployments = {pair: orchestra.deployment(pair) for pair in SCHEDULED}
    paths = []
    for pair, (before, parameters) in SCHEDULED.items():
        (schedule,) = deployments[pair]["schedules"]
        assert (schedule["schedule"]["timezone"], schedule["parameters"]) == ("UTC", before)
        paths.append(f"deployments/{deployments[pair]['id']}/schedules/{schedule['id']}")
        orchestra.call(paths[-1], {**soon, "parameters": {**parameters, "target": "resolve"}}, "PATCH")
    begun = {
        pair: until(lambda of=of: begun_by_schedule(orchestra, of["id"]), f"a run of {pair}")
        for pair, of in deployments.items()
    }
    for path in paths:
        orchestra.call(path, method="DELETE")
    return {pair: orchestra.ended(identity) for pair, identity in begun.items()}


def begun_by_schedule(orchestra: Orchestra, deployment: str) -> str | None:
    """The id of a run by a deployment's schedule that a worker has begun."""
    body = {"deployments": {"id": {"any_": [deployment]}}, "flow_runs": {"tags": {"all_": ["auto-scheduled"]}}}
    runs = orchestra.call("flow_runs/filter", body)
    return next((run["id"] for run in runs if run["state_type"] not in {"SCHEDULED", "PENDING"}), None)


def test_schedules_make_runs_that_do_not_share_a_name(orchestra: Orchestra, scheduled: dict[str, Json]) -> None:
    for pair, run in scheduled.items():
        assert run["state_type"] == "COMPLETED", orchestra.messages(run["id"])
        assert run["name"] == f"{SCHEDULED[pair][1]['row']}-{pair}-{run['id'][-8:]}"
        assert run["name"] in experiments(orchestra.clone)


def test_a_parser_is_a_run_of_its_own_deployment(orchestra: Orchestra, scheduled: dict[str, Json]) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        orchestra.deploy(pair="en-tree", row="sample")
    assert "'sample' is not one of ['parse-wsj'," in refused.value.read().decode()
    run = scheduled["en-tree"]
    assert run["name"].startswith("parse-sample-en-tree-")
    assert orchestra.how(run["id"]) == {"resolve": "Ran"}
    resolved = orchestra.clone.folder / "work/runs" / run["name"] / "results/config.yaml"
    content = yaml.safe_load(resolved.read_text())
    assert content["run"] == {"row": "parse-sample", "pair": "en-tree", "corpus": "sample-trees", "seed": 1}
    assert (content["data"]["target"], content["subwords"]["target"]) == ("tree", "closed")


def test_what_the_user_must_mend_is_one_sentence_and_not_tried_again(orchestra: Orchestra) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        orchestra.deploy(row="C-N3")
    assert "'C-N3' is not one of ['base', 'big'," in refused.value.read().decode()
    untracked = orchestra.deploy("my own: 1", corpus="mine", target="download")
    with listening() as (url, posted):
        notified = orchestra.clone.run(sys.executable, "-m", "pipeline.cli", "notify", url)
        assert notified.returncode == 0, notified.stderr
        mistaken = orchestra.deploy(overrides={"model": {"P_dropped": 0.1}})
        run = orchestra.ended(mistaken)
        assert (run["state_type"], run["state_name"]) == ("FAILED", "Resolve refused")
        assert "did you mean `P_drop`?" in run["state"]["message"]
        sent = until(lambda: [text for text in posted if "Resolve refused" in text], "the notification")[0]
        assert run["name"] in sent
        assert run["state"]["message"] in sent
    assert {name: (task["state_name"], task["run_count"]) for name, task in orchestra.stages(mistaken).items()} == {
        "resolve": ("Refused", 1)
    }
    run = orchestra.ended(untracked)
    assert run["state_name"] == "Refused"
    assert "`git add data/catalog/mine.yaml`" in run["state"]["message"]
    subprocess.run(["git", "add", CATALOG], cwd=orchestra.clone.folder, check=True)
    # By the same name, which does not go on in the copy that the first has left.
    identity = orchestra.deploy("my own: 1", corpus="mine", target="download")
    run = orchestra.ended(identity)
    assert (run["state_type"], run["name"]) == ("COMPLETED", "my own: 1"), orchestra.messages(identity)
    assert f"my_own_1-{identity[-8:]}" in experiments(orchestra.clone)
    assert list(orchestra.how(identity)) == ["resolve", "download"]
