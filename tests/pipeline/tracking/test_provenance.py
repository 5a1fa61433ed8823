"""What the report says of its run: times of the stages and links, from the record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.common.stage import write_json
from pipeline.runs import stage_tracker
from pipeline.runs.record import current_record, records
from pipeline.tracking import provenance


@pytest.fixture(autouse=True)
def root(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository without MLflow."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    return root


def test_stages_have_their_time_in_this_run_or_in_an_earlier_one(root: Path) -> None:
    for stage in ("download", "train", "report"):
        with stage_tracker.open_run(stage):
            pass
    (first,) = records(root / "runs")
    seconds = first.stages()["train"]["seconds"]
    # The same configuration again: DVC runs only what follows the training.
    with stage_tracker.open_run("score"):
        pass
    with stage_tracker.open_run("report"):
        found = provenance.of_present_run()
    times = {name: (spent, ran) for name, spent, ran in found.stages}
    assert next(iter(times)) == "resolve"
    assert "report" not in times
    assert times["train"] == (seconds, False)
    assert times["score"][1]
    assert times["binarize"] == (None, False)


def test_links_lead_to_commit_mlflow_prefect_and_dvc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVC_EXP_NAME", "bold-run")
    monkeypatch.setenv("WMT_FLOW_RUN", "0a1b")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4201/api")
    with stage_tracker.open_run("train"):
        pass
    with stage_tracker.open_run("report"):
        record = current_record()
        assert record is not None
        published = {"uri": "http://user:***@tracking", "experiment": "3", "run": "ff"}
        write_json(record.folder / "published.json", published)
        links = {label: (text, address) for label, text, address in provenance.of_present_run().links}
        assert links["DVC experiment"] == ("bold-run", "")
        assert links["Prefect run"] == ("0a1b", "http://127.0.0.1:4201/runs/flow-run/0a1b")
        assert links["MLflow run"] == ("ff", ""), "a password that is masked leads nowhere"
        assert "cores of" in links["trained on"][0]
        assert links["run"] == (record.folder.name, "")
        write_json(record.folder / "published.json", published | {"uri": "sqlite:///work/mlflow.db"})
        monkeypatch.setenv("MLFLOW_PORT", "5050")
        monkeypatch.setenv("PREFECT_API_URL", "https://user:secret@prefect.example/api")
        links = {label: (text, address) for label, text, address in provenance.of_present_run().links}
        assert links["Prefect run"] == ("0a1b", "")
        assert links["MLflow run"] == (
            "ff",
            "http://127.0.0.1:5050/#/experiments/3/runs/ff?workflowType=machine_learning",
        )


def test_without_a_record_or_with_a_damaged_one_nothing_is_said(root: Path) -> None:
    assert provenance.of_present_run() == provenance.Provenance()
    with stage_tracker.open_run("train"):
        pass
    (record,) = records(root / "runs")
    (record.folder / "run.json").write_text(json.dumps([]))
    assert provenance.of_present_run() == provenance.Provenance()


@pytest.mark.parametrize(
    ("remote", "page"),
    [
        ("git@github.com:owner/name.git", "https://github.com/owner/name/commit/"),
        ("https://user:secret@github.com/owner/name", "https://github.com/owner/name/commit/"),
        ("ssh://git@host.example.org:2222/group/sub/name.git", "https://host.example.org/group/sub/name/commit/"),
        ("/some/folder", ""),
        ("../other", ""),
        ("", ""),
    ],
)
def test_the_page_of_a_commit(remote: str, page: str) -> None:
    commit = "0123456789abcdef" * 2 + "01234567"
    assert provenance.commit_address(remote, commit) == (page + commit if page else "")
    assert provenance.commit_address(remote, "unknown") == ""
