"""The run of finished results in a real MLflow store: all is there, once, whatever the server does meanwhile."""

import json
import socket
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import printed, refused, wmt
from tracked import CONFIGURATION, SCORES, STATE, configure, connected, history, recorded, run, write_results

from nmt.evaluation.known_sets import digest
from pipeline.tracking import publish, registry, server, source

PASSWORD = "correct-horse"


@pytest.fixture
def unregistered(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model is registered, which takes seconds."""
    monkeypatch.setattr(registry, "register", lambda *_: None)


def test_a_run_that_dvc_restored_is_complete(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the curves of its training, although no stage ran here."""
    monkeypatch.delattr("mlflow.MlflowClient.set_model_version_tag")  # A new version is created with its tags.
    write_results(bleu_lowercased_moses=28.5)
    Path("results/comparison.html").write_text("Of `wmt compare`, and no stage's.")
    Path("results/translations").mkdir()
    Path("results/translations/test.de").write_text("Ein Satz.\n")
    assert wmt("publish") == 0
    (run,) = recorded(root)
    assert (run.info.run_name, run.info.status) == ("P_drop=0.2 · base-wmt14-s1", "FINISHED")
    assert run.data.params == {
        "row": "base", "pair": "en-de", "corpus": "wmt14", "seed": "1", "params": "65000000", "updates": "200",
        "devices": "8", "settings.model.P_drop": "0.2",
    }, "of the settings those that differ from the row"  # fmt: skip
    curves = {"loss": 4.0, "ppl": 54.6, "valid_loss": 4.0, "valid_ppl": 54.6}
    assert run.data.metrics == {**curves, "bleu": 27.3, "valid_bleu": 25.8, "bleu_lowercased_moses": 28.5}
    assert history(root, run, "loss") == [(100, 5.0), (200, 4.0)]
    assert history(root, run, "valid_ppl") == [(200, 54.6)]
    assert history(root, run, "bleu") == [(200, 27.3)], "after the last update"
    with connected(root / "mlflow.db") as client:
        times = [point.timestamp - run.info.start_time for point in client.get_metric_history(run.info.run_id, "loss")]
        version = client.get_model_version_by_alias("wmt-en-de", "best")
        artifacts = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert times == [60_000, 120_500], "as in the training that DVC restored"
    tags = run.data.tags
    told = {key: SCORES[key] for key in ("bleu_set", "bleu_signature", "device")}
    assert tags.items() >= {**told, "wmt.training": STATE, "bleu_low": "26.5", "train_hours": "0.0339"}.items()
    assert {"commit", "differing_files", "versions", "mlflow.source.name"} <= tags.keys()
    assert {"report.md", "config.yaml", "scores.json", "training.csv", "translations"} <= artifacts
    assert "comparison.html" not in artifacts
    assert stat.S_IMODE((root / "mlflow.db").stat().st_mode) == 0o600, "only the user can read it"
    assert (version.run_id, version.tags["valid_bleu"], version.tags["seed"]) == (run.info.run_id, "25.8", "1")


def test_further_test_sets_are_metrics(root: Path, unregistered: None) -> None:
    data = {**CONFIGURATION["data"], "test": [{"name": "news14"}, {"name": "medical"}]}
    configure({"data": data})
    write_results(sets={"medical": {"bleu": 31.456, "bleu_low": 30.0}})
    assert wmt("publish") == 0
    (run,) = recorded(root)
    assert (run.data.metrics["bleu"], run.data.metrics["bleu.medical"]) == (27.3, 31.46)
    assert "sets" not in run.data.tags


def test_trees_are_registered_by_their_f1(root: Path) -> None:
    configure(run("D-pdrop0.0", "en-tree") | {"data": {**CONFIGURATION["data"], "target": "tree"}})
    write_results()
    scores = {key: value for key, value in SCORES.items() if "bleu" not in key}
    scores |= {"f1": 91.04321, "f1_low": 90.0, "f1_high": 92.0, "f1_set": "wsj23", "f1_signature": "rules"}
    scores |= {"valid_f1": 90.0, "valid_f1_set": "wsj22, 1700 lines", "f1_malformed": 0.00124}
    Path("results/scores.json").write_text(json.dumps(scores))
    assert wmt("publish") == 0
    (published,) = recorded(root)
    assert (published.data.metrics["f1"], published.data.tags["f1_malformed"]) == (91.04, "0.00124")
    with connected(root / "mlflow.db") as client:
        version = client.get_model_version_by_alias("wmt-en-tree", "best")
        experiment = client.get_experiment_by_name("wmt-en-tree")
    assert experiment.tags["mlflow.experiment.primaryMetric.name"] == "valid_f1"
    assert version.tags.items() >= {"f1": "91.04321", "valid_f1": "90.0", "valid_f1_set": "wsj22, 1700 lines"}.items()
    assert version.tags["valid_f1_references"] == digest(["(S (NN a))"]), "not the paper's section 22"


def test_a_pair_that_chrf_scores_is_compared_by_chrf(root: Path, unregistered: None) -> None:
    """Without the segmenter that sacreBLEU needs for the language."""
    write_results()
    scores = {key.replace("bleu", "chrf"): value for key, value in SCORES.items() if "paper_way" not in key}
    Path("results/scores.json").write_text(json.dumps(scores))
    assert wmt("publish") == 0
    with connected(root / "mlflow.db") as client:
        experiment = client.get_experiment_by_name("wmt-en-de")
    assert experiment.tags["mlflow.experiment.primaryMetric.name"] == "valid_chrf"


def test_publishing_twice_changes_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stored() -> tuple[Any, ...]:
        (run,) = recorded(root)
        with connected(root / "mlflow.db") as client:
            versions = client.search_model_versions("name = 'wmt-en-de'")
        points = {key: history(root, run, key) for key in run.data.metrics}
        return run.data.params, points, [version.version for version in versions]

    write_results()
    assert wmt("publish") == 0
    before, end = stored(), recorded(root)[0].info.end_time
    files = set(root.rglob("mlartifacts/**/*"))
    monkeypatch.setattr(source, "tags", lambda: {"commit": "a later one"})
    assert printed("publish") == "P_drop=0.2 · base-wmt14-s1: published\n"
    assert (stored(), recorded(root)[0].info.end_time) == (before, end)
    assert recorded(root)[0].data.tags["commit"] != "a later one"
    # As after a publication that was killed before its end.
    (run,) = recorded(root)
    with connected(root / "mlflow.db") as client:
        client.update_run(run.info.run_id, status="RUNNING")
    assert wmt("publish") == 0
    assert stored() == before
    assert set(root.rglob("mlartifacts/**/*")) == files
    assert recorded(root)[0].info.status == "FINISHED"


def test_a_run_has_the_code_that_made_its_scores(
    root: Path, unregistered: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def commit() -> str:
        return str(recorded(root)[0].data.tags["commit"])

    write_results()
    with monkeypatch.context() as patch:
        patch.setattr(source, "tags", lambda: {"commit": "first"})
        patch.setattr(registry, "register", lambda *_: 1 / 0)
        publish.finish("report")
    assert "`wmt publish` completes the run" in capfd.readouterr().err
    monkeypatch.setattr(source, "tags", lambda: {"commit": "second"})
    assert (wmt("publish"), commit()) == (0, "first")
    publish.finish("report")
    assert commit() == "second"


def test_a_lower_score_takes_the_place_of_a_higher_one(root: Path, unregistered: None) -> None:
    """The user has mended how translations are scored, and runs the stage again, or goes back to the old way."""
    for score in (30.0, 29.5, 29.0, 30.0):
        write_results(bleu=score)
        publish.finish("report")
        (run,) = recorded(root)
        assert run.data.metrics["bleu"] == score


@pytest.mark.usefixtures("unregistered")
def test_another_configuration_or_training_is_another_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_results(bleu=1.0)
    publish.finish("score")
    assert recorded(root) == [], "only the last stage pays for MLflow"
    publish.finish("report")
    write_results("abc-fed", bleu=2.0)
    publish.finish("report")
    configure(run("big", "en-fr"))
    monkeypatch.setenv("DVC_EXP_NAME", "bold-run")
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "0a1b")
    publish.finish("report")
    runs = recorded(root)
    assert [(recorded_run.info.run_name, recorded_run.data.metrics["bleu"]) for recorded_run in runs] == [
        ("P_drop=0.2 · base-wmt14-s1", 1.0),
        ("P_drop=0.2 · base-wmt14-s1", 2.0),
        ("P_drop=0.2 · big-wmt14-s1 bold-run", 2.0),
    ]
    assert runs[2].data.tags["prefect.flow_run_id"] == "0a1b"


def test_results_of_other_files_are_not_published(root: Path) -> None:
    Path(".dvc").mkdir()
    Path(".dvc/config").write_text("[core]\n    no_scm = true\n")
    write_results()
    assert "`dvc status` lists what differs" in refused("publish")
    assert recorded(root) == []
    (root / "train/killed").mkdir(parents=True)
    with connected(root / "mlflow.db") as client:
        server.open_run(client, "killed")
    assert "`dvc status` lists what differs" in refused("publish")
    assert [run.info.status for run in recorded(root)] == ["KILLED"], "whatever is here"


def test_a_server_that_is_down_gets_everything_later(
    root: Path, unregistered: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # Nothing listens on this port: connections are refused.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://someone:{PASSWORD}@127.0.0.1:9")
    write_results()
    publish.finish("report")
    assert wmt("publish") == 1
    output = capfd.readouterr()
    warning, refused = output.err.strip().split("\n")
    assert warning.startswith("report: tracking: MLflow at http://***@127.0.0.1:9: ")
    assert warning.endswith("; `wmt publish` completes the run")
    assert refused.startswith("publish: MLflow at http://***@127.0.0.1:9: ")
    assert PASSWORD not in output.out + output.err
    assert [path for path in root.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()] == []
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    assert wmt("publish") == 0
    assert [run.data.metrics["bleu"] for run in recorded(root)] == [27.3]


def test_a_server_that_never_answers_is_not_waited_for(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write_results()
    monkeypatch.setattr(server, "PATIENCE", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{mute.getsockname()[1]}")
        start = time.monotonic()
        publish.finish("report")
        assert time.monotonic() - start < 10
    assert capfd.readouterr().err.count("did not take everything in 1 s; `wmt publish` completes the run") == 1


def test_a_stage_after_the_training_says_how_it_ended(root: Path, unregistered: None) -> None:
    write_results()
    publish.end("decode", "FAILED")
    assert recorded(root) == [], "nothing to say it of"
    publish.finish("report")
    for told in ("decode FAILED FAILED", "tokenize KILLED FAILED", "score KILLED KILLED"):
        stage, status, expected = told.split()
        publish.end(stage, status)
        assert [run.info.status for run in recorded(root)] == [expected]
    publish.finish("report")
    assert [run.info.status for run in recorded(root)] == ["FINISHED"]


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("http://user:secret@host:5000/path", "http://***@host:5000/path"),
        ("https://:secret@host", "https://***@host"),
        ("postgresql://user:se@cret/secret@host/mlflow", "postgresql://***@host/mlflow"),
        ("postgresql://me:se/cret@host/mlflow?user=me&password=secret&x=1", "postgresql://***@host/mlflow?***"),
        ("sqlite:////home/me@work/mlflow.db", "sqlite:////home/me@work/mlflow.db"),
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000"),
    ],
)
def test_credentials_are_masked_and_nothing_else(uri: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert server.masked(uri) == expected
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    said = server.problem(OSError(f"http://user:{'secret' * 50}@host failed\nmore"))
    assert said == f"MLflow at {expected}: http://***@host failed"
    assert server.masked(f"request to {uri} failed: see http://a/b") == f"request to {expected} failed: see http://a/b"
