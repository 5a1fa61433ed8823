"""Runs against a real MLflow store: sqlite, or a server; what it has is what the records say, and no more."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from command_line import wmt
from model_folders import folder_of
from ports import free_port
from records import CONFIGURATION, configure, run

from nmt.config import InputError
from pipeline.common.paths import CONFIG
from pipeline.common.settings import ArchiveSettings, ParallelSettings
from pipeline.common.stage import Interrupted
from pipeline.corpora.archive_cache import obtain
from pipeline.corpora.fetch import Patience
from pipeline.runs import stage_tracker
from pipeline.runs.record import Record, append, current_record, now, records
from pipeline.tracking import projection, publish

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


def with_archive(**differences: object) -> dict[str, Any]:
    """The configuration's data with another archive."""
    data: Any = CONFIGURATION["data"]
    return {**data, "archives": [{**data["archives"][0], **differences}]}


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow database: making one takes seconds."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    with connected(path) as client:
        client.search_experiments()
    return path


@pytest.fixture
def root(root: Path, store: Path) -> Path:
    """The state root, with an MLflow database."""
    shutil.copyfile(store, root / "mlflow.db")
    return root


@contextlib.contextmanager
def without_mlflow() -> Iterator[None]:
    """Stages publish nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda _: None)
        yield


@contextlib.contextmanager
def connected(path: Path) -> Iterator[MlflowClient]:
    """A client of the store, whose connections are closed afterwards."""
    from mlflow import MlflowClient  # It takes a second, which each of pytest's processes would spend on collecting.

    client = MlflowClient(f"sqlite:///{path}")
    yield client
    client._tracking_client.store.engine.dispose()


def recorded(root: Path) -> list[Run]:
    """Every run in the store, oldest first."""
    with connected(root / "mlflow.db") as client:
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        return list(client.search_runs(experiments, order_by=["attributes.start_time"]))


def corpora(run: Run) -> dict[str, str]:
    """The digests of a run's inputs by name."""
    assert run.inputs is not None
    return {corpus.dataset.name: corpus.dataset.digest for corpus in run.inputs.dataset_inputs}


def history(root: Path, run: Run, key: str) -> list[tuple[int, float]]:
    """Every value of a metric with its update."""
    with connected(root / "mlflow.db") as client:
        return sorted((metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, key))


SCORES = {
    "bleu": 27.3,
    "bleu_set": "newstest2014, 3003 lines",
    "bleu_low": 26.5,
    "bleu_high": 28.1,
    "bleu_valid": 25.8,
    "bleu_valid_set": "newstest2013, 3000 lines",
    "ppl_valid": 4.92,
    "params": 65_000_000,
    "devices": 8,
    "train_flops_paper": 3.3e18,
    "model_flops_utilisation": None,
}


def scored(bleu: float) -> None:
    """The results that `report` finds when it ends."""
    Path("results/scores.json").write_text(json.dumps({"bleu": bleu, "bleu_set": "newstest2014, 3003 lines"}))


def downloaded() -> None:
    """What `download` counts in the texts."""
    Path("data/raw").mkdir(parents=True)
    Path("data/raw/stats.json").write_text(json.dumps({"pairs": {"train.news": 4, "valid.valid": 2, "test.test": 1}}))


def finish(bleu: float, stage: str = "report") -> None:
    """A stage that ends well, with results."""
    scored(bleu)
    with stage_tracker.open_run(stage):
        pass


def stop(error: BaseException, stage: str, values: Mapping[str, float], update: int | None = None) -> None:
    """A stage that measures something and ends by an error."""
    with stage_tracker.open_run(stage) as tracker:
        tracker.metrics(values, update)
        raise error


def wait_until(condition: Callable[[], object], seconds: float = 200) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.1)


def test_the_stages_of_one_repro_are_one_run(root: Path) -> None:
    with stage_tracker.open_run("resolve") as tracker:
        tracker.tags({"versions": "locked"})
    downloaded()
    with stage_tracker.open_run("tokenize") as tracker:
        tracker.metrics({"pairs": 20_000, "dropped_empty": 3})
    assert recorded(root) == [], "short stages do not pay for MLflow"
    with stage_tracker.open_run("train") as tracker:
        for update in range(1, 1501):
            tracker.metrics({"loss": 5 - update / 1000, "learning_rate": 1e-3, "seconds": 36.0 * update}, update)
        tracker.metrics({"valid_loss": 4.0, "seconds": 54_000.0}, 1500)
        tracker.metrics({"pairs": 100_000, "updates": 1500, "loss_valid": 4.0})
    (between,) = recorded(root)
    assert between.info.status == "FINISHED"
    Path("results/scores.json").write_text(json.dumps(SCORES))
    Path("results/report.md").write_text("# Report\n")
    with stage_tracker.open_run("report"):
        pass
    (run,) = recorded(root)
    assert (run.info.run_name, run.info.status) == ("base-wmt14-s1", "FINISHED")
    assert run.data.params == {
        "row": "base",
        "pair": "en-de",
        "corpus": "wmt14",
        "seed": "1",
        "settings.model.P_drop": "0.2",
        "parameters": "65000000",
    }, "of the settings those that differ from the row"
    assert (
        run.data.metrics.items()
        >= {"data/pairs": 20_000.0, "train/pairs": 100_000.0, "test/bleu": 27.3, "train/loss": 3.5}.items()
    ), "two stages measure pairs"
    assert {f"seconds/{stage}" for stage in ("resolve", "tokenize", "train", "report")} <= set(run.data.metrics)
    assert {"commit", "differing_files", "hardware.cpu", "mlflow.source.name", "versions"} <= set(run.data.tags)
    assert run.data.tags["mlflow.note.content"].startswith(
        "BLEU 27.3 (95% interval 26.5 to 28.1) on newstest2014, 3003 lines, by sacreBLEU. Last checkpoint: "
        "BLEU 25.8 on newstest2013, 3000 lines. Perplexity per subword of the validation set: 4.92."
    )
    assert run.data.tags["bleu_set"] == "newstest2014, 3003 lines"
    ran = "resolve finished, tokenize finished, train finished, report finished, download cached, "
    assert run.data.tags["stages"].startswith(ran)
    assert len([key for key in run.data.tags if not key.startswith("mlflow.")]) < 15, "they are above the description"
    groups = {key.split("/")[0] for key in run.data.metrics}
    assert groups - {"system"} == {"train", "valid", "test", "data", "seconds"}
    assert history(root, run, "train/hours")[-1] == (1500, 15.0)
    doubled = {"valid/ppl", "train/loss_valid", "train/updates", "data/dropped_empty"}
    assert not doubled & run.data.metrics.keys(), "curves and constants that have another name"
    assert run.inputs is not None
    contexts = {corpus.dataset.name: corpus.tags[0].value for corpus in run.inputs.dataset_inputs}
    assert contexts == {"news": "training", "valid": "validation", "test": "test"}
    profiles = {corpus.dataset.name: json.loads(corpus.dataset.profile) for corpus in run.inputs.dataset_inputs}
    assert profiles == {"news": {"num_rows": 4}, "valid": {"num_rows": 2}, "test": {"num_rows": 1}}
    assert len(history(root, run, "train/loss")) == 1500
    (artifacts,) = root.glob("mlartifacts/*/artifacts")
    assert {"report.md", "config.yaml", "scores.json", "run.json"} <= {path.name for path in artifacts.iterdir()}
    (record,) = records(root / "runs")
    assert record.is_published()
    assert run.info.end_time == max(stage["end"] for stage in record.stages().values())


def test_a_lower_score_takes_the_place_of_a_higher_one(root: Path) -> None:
    """The user has mended how translations are scored, and runs the stage again."""
    for bleu in (30.0, 29.5):
        with without_mlflow():
            finish(bleu, "score")
        assert wmt("publish", "base") == 0
        (run,) = recorded(root)
        assert run.data.metrics["test/bleu"] == bleu


def test_a_number_has_the_same_time_whenever_it_is_sent(root: Path) -> None:
    """MLflow may carry out the request of a publisher that was killed after the next one has looked what is there."""
    with without_mlflow():
        with stage_tracker.open_run("decode") as tracker:
            tracker.metrics({"decode_test_seconds": 2.5})
            (record,) = records(root / "runs")
            server = publish.Server(root)
            run, _ = server.run(record)
            early = [projection.Publication(server.client, record, run)]
        with stage_tracker.open_run("score"):
            early.append(projection.Publication(server.client, record, run))
            scored(27.3)
    for publication in (*early, projection.Publication(server.client, record, run)):
        publication.log_numbers()
    server.client._tracking_client.store.engine.dispose()
    (run,) = recorded(root)
    assert {"test/bleu", "seconds/decode_test", "seconds/decode"} <= run.data.metrics.keys()
    assert {key: len(history(root, run, key)) for key in run.data.metrics} == dict.fromkeys(run.data.metrics, 1)


def test_publishing_twice_changes_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with without_mlflow():
        with stage_tracker.open_run("train") as tracker:
            for update in range(1, 1201):
                tracker.metrics({"loss": 1 / update}, update)
        finish(27.3)
    (record,) = records(root / "runs")
    assert wmt("publish") == 0
    assert capsys.readouterr().out == f"{record.folder.name}: published\n"
    (before,) = recorded(root)
    files = {path: path.stat().st_mtime_ns for path in root.rglob("mlartifacts/**/*")}
    assert wmt("publish", "--all") == 0
    assert wmt("publish", record.folder.name[:12]) == 0
    assert capsys.readouterr().out == f"{record.folder.name}: up to date\n" * 2
    assert wmt("publish") == 0
    assert capsys.readouterr().out == "", "nothing waits"
    # As after a publisher that was killed before it had noted what it sent.
    with connected(root / "mlflow.db") as client:
        client.delete_tag(before.info.run_id, projection.PUBLISHED)
    assert wmt("publish", "--all") == 0
    (after,) = recorded(root)
    assert (after.data.metrics, after.data.params) == (before.data.metrics, before.data.params)
    assert (after.info.status, after.info.end_time) == (before.info.status, before.info.end_time)
    assert history(root, after, "train/loss") == [(update, 1 / update) for update in range(1, 1201)]
    assert set(root.rglob("mlartifacts/**/*")) == files.keys()
    assert wmt("publish", "other") == 1
    assert "'other' names 0 runs" in capsys.readouterr().err


def test_a_run_with_a_cached_training_has_curves(root: Path) -> None:
    """DVC restored what `train` wrote, without running it."""
    Path("results/training.csv").write_text("update,loss,ppl,seconds\n100,5.0,148.4,60\n200,4.0,54.6,120\n")
    Path("results/validation.csv").write_text("update,valid_loss\n200,4.5\n")
    with without_mlflow():
        finish(27.3)
    assert wmt("publish") == 0
    (run,) = recorded(root)
    assert history(root, run, "train/loss") == [(100, 5.0), (200, 4.0)]
    assert history(root, run, "valid/loss") == [(200, 4.5)]
    with connected(root / "mlflow.db") as client:
        first, second = client.get_metric_history(run.info.run_id, "train/loss")
    assert second.timestamp - first.timestamp == 60_000, "as in the training that DVC restored"
    assert "train cached" in run.data.tags["stages"]


def test_a_wholly_cached_run_is_a_run_of_mlflow(root: Path) -> None:
    """As pipeline/runs/supervisor.py ends the runs of Prefect and the ablation."""
    scored(27.3)
    Path("results/training.csv").write_text("update,loss\n100,5.0\n")
    record = current_record()
    assert record is not None
    record.create(CONFIG)
    record.finish(["resolve", "train", "score", "report"])
    stage_tracker.publish(record, "run")
    (run,) = recorded(root)
    assert (run.info.status, run.data.metrics) == ("FINISHED", {"test/bleu": 27.3, "train/loss": 5.0})


def test_a_run_whose_publisher_ran_out_of_patience_gets_its_bleu_later(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """By `wmt publish`, and by any other run."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{mute.getsockname()[1]}")
        monkeypatch.setenv("WMT_TRACKING_PATIENCE", "1")
        finish(27.3)
    assert capfd.readouterr().err.count("MLflow did not take everything in time: the run is in ") == 1
    with without_mlflow():
        configure(run("big"))
        finish(28.4)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.setenv("WMT_TRACKING_PATIENCE", "200")
    assert recorded(root) == []
    assert wmt("publish", "base") == 0
    assert [run.data.metrics["test/bleu"] for run in recorded(root)] == [27.3]
    configure(run("C-N2"))
    finish(20.0)
    assert [run.data.metrics["test/bleu"] for run in recorded(root)] == [27.3, 28.4, 20.0]


def test_the_runs_of_an_ablation_have_a_parent(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = Record(root / "runs/ablation-1")
    study.create(pair="en-de", corpus="wmt14", settings={"width": 4})
    monkeypatch.setenv("WMT_PARENT", "ablation-1")
    with without_mlflow():
        for seed in (1, 2):
            configure(run("base", seed=seed))
            finish(27.3)
    assert wmt("publish") == 0
    runs = {run.info.run_name: run for run in recorded(root)}
    parent = runs.pop("ablation-1")
    assert (parent.data.params, parent.info.status) == (
        {"pair": "en-de", "corpus": "wmt14", "settings.width": "4"},
        "KILLED",
    )
    assert runs.keys() == {"base-wmt14-s1", "base-wmt14-s2"}
    assert {run.data.tags["mlflow.parentRunId"] for run in runs.values()} == {parent.info.run_id}
    study.update(complete=True)
    assert wmt("publish") == 0
    assert {run.info.status for run in recorded(root)} == {"FINISHED"}


def test_runs_are_listed_with_what_mlflow_has_of_them(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with without_mlflow():
        finish(27.34)
        configure(run("big"))
        with pytest.raises(InputError):
            stop(InputError("refused"), "train", {"loss": 5.0}, 1)
    assert wmt("publish", "base") == 0
    capsys.readouterr()
    assert wmt("runs") == 0
    header, *lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert header == ["run", "name", "row", "corpus", "seed", "started", "status", "score", "MLflow"]
    assert [line[1:5] + line[7:] for line in lines] == [
        ["base-wmt14-s1", "base", "wmt14", "1", "finished", "BLEU", "27.3", "yes"],
        ["big-wmt14-s1", "big", "wmt14", "1", "failed", "-", "no"],
    ]


def test_a_run_of_trees_is_registered_by_its_f1_and_listed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search = {"beam": 4, "alpha": 0.6}
    configure({"run": {**CONFIGURATION["run"], "row": "parse-small", "pair": "en-tree"}, "search": search})
    scores = {
        "f1": 91.04,
        "f1_valid": 90.0,
        "f1_valid_set": "wsj22, 1700 lines",
        "f1_malformed": 0.01,
        "ppl_valid": 1.1,
    }
    Path("results/scores.json").write_text(json.dumps({**scores, "updates": 10}))
    folder_of(Path("models/average"))
    with without_mlflow(), stage_tracker.open_run("score"):
        pass
    (record,) = records(root / "runs")
    record.finish(["average", "score", "report"])
    assert wmt("publish") == 0
    (published,) = recorded(root)
    points = {key: len(history(root, published, key)) for key in published.data.metrics}
    assert points == dict.fromkeys(points, 1), "the scores of the registered model are those of the run"
    with connected(root / "mlflow.db") as client:
        version = client.get_model_version_by_alias("wmt-en-tree", "best")
        model = client.get_registered_model("wmt-en-tree")
        experiment = client.get_experiment_by_name("wmt-en-tree")
        assert experiment is not None
        (logged,) = client.search_logged_models([experiment.experiment_id])
    assert {"test/f1", "valid/f1"} <= {metric.key for metric in logged.metrics or ()}
    assert experiment.tags["mlflow.experiment.primaryMetric.name"] == "valid/f1"
    assert model.description.startswith("Parses English into constituency trees.")
    assert "F1 91.0 on the test set, by EVALB" in version.description
    assert "- a:  ()" in version.description, "archives with their licences"
    assert version.tags.items() >= {"f1": "91.04", "f1_valid": "90.0", "f1_valid_set": "wsj22, 1700 lines"}.items()
    capsys.readouterr()
    assert wmt("runs") == 0
    assert "finished  F1 91.0  yes" in capsys.readouterr().out


def test_a_finished_run_is_not_reopened_and_another_configuration_is_another_run(root: Path) -> None:
    with without_mlflow():
        finish(1.0)
    assert wmt("publish") == 0
    with without_mlflow():
        for bleu in (2.0, 3.0):
            finish(bleu)
        configure(run("big", "en-fr") | {"data": with_archive(sha256="1" * 64)})
        finish(4.0)
    assert wmt("publish") == 0
    runs = sorted(recorded(root), key=lambda run: run.data.metrics["test/bleu"])
    first, second, third, other = map(corpora, runs)
    assert first.keys() == {"news", "valid", "test"}
    assert first == second == third
    assert not first.items() & other.items(), "another archive is other text"
    assert [(run.info.run_name, run.data.metrics["test/bleu"]) for run in runs] == [
        ("base-wmt14-s1", 1.0),
        ("base-wmt14-s1", 2.0),
        ("base-wmt14-s1", 3.0),
        ("big-wmt14-s1", 4.0),
    ]


def test_an_interrupted_stage_ends_killed_and_continues_in_the_same_run_until_another_fails(root: Path) -> None:
    unchecked = with_archive(urls=[Path("a.tgz").absolute().as_uri()], sha256=None)
    configure({"data": unchecked})
    with pytest.raises(Interrupted), without_mlflow():
        stop(Interrupted(), "train", {"loss": 5.0}, 1)
    assert wmt("publish") == 0
    (run,) = recorded(root)
    assert run.info.status == "KILLED"
    assert corpora(run) == {}, "the text of an archive without a checksum is not known before its download"
    with tarfile.open("a.tgz", "w:gz") as file:
        file.add(__file__, "a.en")
    obtain([ArchiveSettings.model_validate(each) for each in unchecked["archives"]], root, Patience())
    downloaded()
    with without_mlflow(), stage_tracker.open_run("train") as tracker:
        # A resumed training reports its history again.
        tracker.metrics({"loss": 5.0}, 1)
        tracker.metrics({"loss": 4.0}, 2)
    assert wmt("publish", "--all") == 0
    (run,) = recorded(root)
    assert run.info.status == "FINISHED"
    assert history(root, run, "train/loss") == [(1, 5.0), (2, 4.0)]
    assert corpora(run).keys() == {"news", "valid", "test"}
    with pytest.raises(InputError, match="too few"), stage_tracker.open_run("average"):
        raise InputError("too few checkpoints")
    assert [run.info.status for run in recorded(root)] == ["FAILED"], "although it measured nothing"


@pytest.mark.parametrize("publisher_too", [False, True])
def test_a_stage_that_is_sigkilled_ends_killed(root: Path, publisher_too: bool) -> None:
    """By its publisher, or, where both are killed, by the next `wmt publish`."""
    program = (
        "import time\nfrom pipeline.runs import stage_tracker\n"
        "with stage_tracker.open_run('train') as tracker:\n"
        "    tracker.metrics({'loss': 5.0}, 1)\n    print('recorded', flush=True)\n    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as stage:
        assert stage.stdout is not None
        assert stage.stdout.readline() == b"recorded\n"
        (record,) = records(root / "runs")
        wait_until(record.published)
        assert [run.info.status for run in recorded(root)] == ["RUNNING"]
        if publisher_too:
            for process in psutil.Process(stage.pid).children():
                process.kill()
        stage.kill()
    if publisher_too:
        stage.wait()
        assert wmt("publish") == 0
    wait_until(lambda: [run.info.status for run in recorded(root)] == ["KILLED"])
    (run,) = recorded(root)
    assert run.data.metrics["train/loss"] == 5.0


FAILURES: dict[str, tuple[str, type[BaseException], str]] = {
    "download": ("A-h1", InputError, "FAILED"),
    "tokenize": ("A-h4", OSError, "FAILED"),
    "learn_subwords": ("A-h16", KeyboardInterrupt, "KILLED"),
    "binarize": ("A-h32", MemoryError, "FAILED"),
    "train": ("B-dk16", ChildProcessError, "FAILED"),
    "average": ("B-dk32", InputError, "FAILED"),
    "decode": ("C-N2", Interrupted, "KILLED"),
    "score": ("C-N4", InputError, "FAILED"),
    "attention": ("C-N8", RuntimeError, "FAILED"),
    "report": ("big", SystemExit, "FAILED"),
}
"""Stage -> row of its run, what ends it, and the status of the run."""


def test_the_next_run_publishes_how_earlier_runs_ended(root: Path) -> None:
    with without_mlflow():
        for stage, (row, error, _) in FAILURES.items():
            configure(run(row))
            with stage_tracker.open_run("binarize"):
                pass
            with pytest.raises(error), stage_tracker.open_run(stage):
                raise error("before it measured anything")
        configure(run("small"))
        program = (
            "import os\nfrom pipeline.runs import stage_tracker\n"
            "with stage_tracker.open_run('score'): os.kill(os.getpid(), 9)"
        )
        subprocess.run([sys.executable, "-c", program], check=False)
        configure(run("sample"))
        with stage_tracker.open_run("binarize"):
            pass
        configure({})
        with stage_tracker.open_run("train") as tracker:
            tracker.metrics({"loss": 5.0}, 1)
    assert wmt("publish", "base") == 0
    record = current_record()
    assert record is not None
    # As if stage and publisher had both been killed at once: running, with something still to be sent.
    with connected(root / "mlflow.db") as client:
        client.update_run(record.published()["run"], status="RUNNING")
    stage_tracker.write_json(record.folder / "stages/train.json", {"status": "running", "start": now()})
    append(record.history, {"time": now(), "update": 2, "values": {"loss": 4.0}})
    configure(run("D-eps0.0"))
    finish(1.0)
    runs = {run.data.params["row"]: run for run in recorded(root)}
    assert (runs["base"].info.status, runs["base"].data.metrics["train/loss"]) == ("KILLED", 4.0)
    assert runs["D-eps0.0"].info.status == "FINISHED"
    assert {row: runs[row].info.status for row, _, _ in FAILURES.values()} == {
        row: status for row, _, status in FAILURES.values()
    }
    assert runs["small"].info.status == "KILLED"
    assert "sample" not in runs, "its next stage publishes it"


def test_a_digest_follows_the_bytes_of_both_sides() -> None:
    def parallel(*sides: dict[str, str | None]) -> ParallelSettings:
        return ParallelSettings.model_validate({"name": "x", "source": sides[0], "target": sides[1]})

    archives = {"a": "0" * 64, "b": "1" * 64, "mirror": "0" * 64, "unknown": None}
    english, german = {"archive": "a", "member": "a.en"}, {"archive": "a", "member": "a.de"}
    base = parallel(english, german)
    local = [parallel({"path": "x", "sha256": digit * 64}, german) for digit in "01"]
    others = [
        parallel({**english, "member": "b.en"}, german),
        parallel({**english, "archive": "b"}, german),
        parallel(english, {**german, "archive": "b"}),
        parallel(german, english),
        *local,
    ]
    assert len({projection.digest(text, archives) for text in (base, *others)}) == 1 + len(others)
    same = parallel({**english, "archive": "mirror"}, {**german, "archive": "mirror"})
    assert projection.digest(same, archives) == projection.digest(base, archives)
    assert projection.digest(parallel(english, {**german, "archive": "unknown"}), archives) is None


def test_a_server_that_is_down_stops_nothing_and_gets_everything_later(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # Nothing listens on this port: connections are refused.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://someone:{PASSWORD}@127.0.0.1:9")
    scored(27.3)
    with pytest.raises(InputError):
        stop(InputError("refused"), "score", {"pairs": 3})
    assert wmt("publish") == 1
    output = capfd.readouterr()
    lines = output.err.strip().split("\n")
    assert len(lines) == 2
    assert "MLflow at http://***@127.0.0.1:9 is not reached" in lines[0]
    assert lines[1].startswith("publish: MLflow at http://***@127.0.0.1:9: ")
    assert PASSWORD not in output.out + output.err
    assert leaks(root) == []
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    configure(run("big"))
    finish(28.4)
    runs = {run.info.run_name: run for run in recorded(root)}
    base = runs["base-wmt14-s1"]
    assert (base.info.status, base.data.metrics["data/pairs"]) == ("FAILED", 3)
    assert [record.is_complete() for record in records(root / "runs")] == [False, True], "the failed one can continue"


PASSWORD = "correct-horse"


def leaks(root: Path) -> list[Path]:
    """The files that hold the password."""
    return [path for path in root.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]


@contextlib.contextmanager
def serving(root: Path, port: int) -> Iterator[None]:
    """An MLflow server on the store of `root`, from its first answer on."""
    command = [
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",
        "--backend-store-uri",
        f"sqlite:///{root / 'mlflow.db'}",
        "--artifacts-destination",
        str(root / "mlartifacts"),
    ]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    with (root / "server.log").open("a") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_until(lambda: answers(f"http://127.0.0.1:{port}/health"), 200)
        yield
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@contextlib.contextmanager
def reachable(behind: int, port: int) -> Iterator[None]:
    """Let `port` lead to the server at `behind`; then cut and refuse connections. Restarts of a server take longer."""
    open_sockets: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def start(work: Callable[..., None], *arguments: socket.socket) -> None:
        threads.append(threading.Thread(target=work, args=arguments))
        threads[-1].start()

    def copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def accept(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", behind))
                open_sockets.extend((near, far))
                start(copy, near, far)
                start(copy, far, near)

    with socket.create_server(("127.0.0.1", port)) as listener:
        start(accept, listener)
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            threads[0].join()
            for each in open_sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            for thread in threads[1:]:
                thread.join()
            for each in open_sockets:
                each.close()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10):
            return True
    except OSError:
        return False


def test_a_server_that_is_stopped_for_a_while_loses_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    port, behind = free_port(), free_port()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://someone:{PASSWORD}@127.0.0.1:{port}")
    with serving(root, behind), contextlib.ExitStack() as again:
        with stage_tracker.open_run("train") as tracker:
            with reachable(behind, port):
                for update in range(1, 51):
                    tracker.metrics({"loss": 1 / update}, update)
                wait_until(lambda: any(record.published() for record in records(root / "runs")), 200)
            for update in range(51, 101):
                tracker.metrics({"loss": 1 / update}, update)
            problem = f"MLflow at http://***@127.0.0.1:{port} is not reached"
            output = ""
            end = time.monotonic() + 200
            while problem not in output:
                assert time.monotonic() < end, output
                time.sleep(0.2)
                output += capfd.readouterr().err
            again.enter_context(reachable(behind, port))
        (run,) = recorded(root)
    assert PASSWORD not in output + "".join(capfd.readouterr())
    assert leaks(root) == []
    assert run.info.status == "FINISHED"
    assert history(root, run, "train/loss") == [(update, 1 / update) for update in range(1, 101)]
