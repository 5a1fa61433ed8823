"""Runs against a real MLflow store (sqlite), through the process that sends them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from mlflow import MlflowClient
from mlflow.entities import Run

from nmt.config import InputError
from pipeline import tracking
from pipeline.spool import Spool, spools
from pipeline.stage import Interrupted

MEMBER = {"archive": "a", "member": "a.en", "path": None}
TRAIN, VALID, TEST = ({"name": name, "source": MEMBER, "target": MEMBER} for name in ("news", "valid", "test"))
CONFIGURATION = {
    "run": {"row": "base", "pair": "en-de"},
    "data": {"train": [TRAIN], "valid": VALID, "test": TEST},
    "model": {"N": 6, "P_drop": 0.1},
}


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow database: making one takes seconds."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    with connected(path) as client:
        client.search_experiments()
    return path


@pytest.fixture
def root(tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a resolved configuration as working directory; returns its state root."""
    (tmp_path / "work").mkdir()
    shutil.copyfile(store, tmp_path / "work/mlflow.db")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("WMT_RUN", raising=False)
    monkeypatch.setenv("WMT_TRACKING_PATIENCE", "200")
    monkeypatch.setenv("WMT_STATE", str(tmp_path / "work"))
    # The sending process runs in this folder, and finds the code of this copy.
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    configure({})
    return tmp_path / "work"


def configure(differences: Mapping[str, object]) -> None:
    Path("results").mkdir(exist_ok=True)
    Path("results/config.yaml").write_text(yaml.safe_dump({**CONFIGURATION, **differences}))


@contextlib.contextmanager
def connected(path: Path) -> Iterator[MlflowClient]:
    """A client of the store, whose connections are closed afterwards."""
    client = MlflowClient(f"sqlite:///{path}")
    yield client
    client._tracking_client.store.engine.dispose()


def recorded(root: Path) -> list[Run]:
    """Every run in the store, oldest first."""
    with connected(root / "mlflow.db") as client:
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        return list(client.search_runs(experiments, order_by=["attributes.start_time"]))


def history(root: Path, run: Run, key: str) -> list[tuple[int, float]]:
    """Every value of a metric with its update."""
    with connected(root / "mlflow.db") as client:
        return sorted((metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, key))


def test_the_stages_of_one_repro_are_one_run(root: Path) -> None:
    with tracking.open_run("resolve") as tracker:
        tracker.tags({"row": "base"})
    with tracking.open_run("tokenize") as tracker:
        tracker.metrics({"pairs": 20_000})
    assert recorded(root) == [], "short stages do not pay for MLflow"
    with tracking.open_run("train") as tracker:
        for update in range(1, 1501):
            tracker.metrics({"loss": 5 - update / 1000, "learning_rate": 1e-3}, update)
    (between,) = recorded(root)
    assert between.info.status == "FINISHED"
    Path("report.md").write_text("# Report\n")
    with tracking.open_run("report") as tracker:
        tracker.metrics({"bleu": 27.3})
        tracker.artifact(Path("report.md"))
        Path("report.md").unlink()
    (run,) = recorded(root)
    assert (run.info.run_name, run.info.status) == ("base", "FINISHED")
    assert run.data.params.items() >= {"model.N": "6", "model.P_drop": "0.1", "data.train.0.name": "news"}.items()
    assert run.data.metrics.items() >= {"pairs": 20_000.0, "bleu": 27.3, "loss": 3.5}.items()
    assert {"seconds.resolve", "seconds.tokenize", "seconds.train", "seconds.report"} <= set(run.data.metrics)
    assert {"commit", "differing_files", "version.torch", "hardware.cpu", "row"} <= set(run.data.tags)
    corpora = {corpus.dataset.name: corpus.tags[0].value for corpus in run.inputs.dataset_inputs}
    assert corpora == {"news": "training", "valid": "validation", "test": "test"}
    assert len(history(root, run, "loss")) == 1500
    assert [path.read_text() for path in root.glob("mlartifacts/*/artifacts/report.md")] == ["# Report\n"]
    assert spools(root / "tracking") == [], "all was sent"


def test_a_finished_run_is_not_reopened_and_another_configuration_is_another_run(root: Path) -> None:
    for _ in range(2):
        with tracking.open_run("report") as tracker:
            tracker.metrics({"bleu": 1.0})
    configure({"run": {"row": "big", "pair": "en-fr"}})
    with tracking.open_run("report") as tracker:
        tracker.metrics({"bleu": 2.0})
    assert [(run.info.run_name, run.data.metrics["bleu"]) for run in recorded(root)] == [
        ("base", 1.0), ("base", 1.0), ("big", 2.0),
    ]  # fmt: skip


def test_an_interrupted_stage_ends_killed_and_goes_on_in_the_same_run(root: Path) -> None:
    with pytest.raises(Interrupted):
        stop(Interrupted(), "train", {"loss": 5.0}, 1)
    assert [run.info.status for run in recorded(root)] == ["KILLED"]
    with tracking.open_run("train") as tracker:
        # A resumed training tells its history again.
        tracker.metrics({"loss": 5.0}, 1)
        tracker.metrics({"loss": 4.0}, 2)
    (run,) = recorded(root)
    assert run.info.status == "FINISHED"
    assert history(root, run, "loss") == [(1, 5.0), (2, 4.0)]


def test_a_stage_that_is_sigkilled_ends_killed_without_help(root: Path) -> None:
    program = (
        "import time\nfrom pipeline import tracking\n"
        "with tracking.open_run('train') as tracker:\n"
        "    tracker.metrics({'loss': 5.0}, 1)\n    print('told', flush=True)\n    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as stage:
        assert stage.stdout is not None
        assert stage.stdout.readline() == b"told\n"
        wait_until(lambda: any("run" in spool.state() for spool in spools(root / "tracking")))
        stage.kill()
    wait_until(lambda: [spool.state().get("status") for spool in spools(root / "tracking")] == ["KILLED"])
    (run,) = recorded(root)
    assert (run.info.status, run.data.metrics["loss"]) == ("KILLED", 5.0)


def test_the_next_start_marks_dead_runs_killed(root: Path) -> None:
    with tracking.open_run("train") as tracker:
        tracker.metrics({"loss": 5.0}, 1)
    (spool,) = spools(root / "tracking")
    # As if stage and sender had both been killed at once: running, with something still to be sent.
    with connected(root / "mlflow.db") as client:
        client.update_run(spool.state()["run"], status="RUNNING")
    spool.set_state({**spool.state(), "status": "RUNNING"})
    spool.append("train", "begin")
    spool.append("train", "metrics", values={"loss": 4.0}, update=2)
    configure({"run": {"row": "big", "pair": "en-de"}})
    with tracking.open_run("report"):
        pass
    runs = {run.info.run_name: run for run in recorded(root)}
    assert (runs["base"].info.status, runs["base"].data.metrics["loss"]) == ("KILLED", 4.0)
    assert runs["big"].info.status == "FINISHED"


def test_a_failure_after_training_is_seen_in_the_run(root: Path) -> None:
    with tracking.open_run("train"):
        pass
    with pytest.raises(RuntimeError, match="no beam"):
        stop(RuntimeError("no beam"), "decode", {"decode_valid_seconds": 1.0})
    assert [run.info.status for run in recorded(root)] == ["FAILED"]


def test_a_server_that_is_down_stops_nothing_and_gets_everything_later(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # A port that is bound but not listened on refuses connections.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with tracking.open_run("report") as tracker:
        tracker.metrics({"bleu": 27.3})
    lines = capfd.readouterr().err.strip().split("\n")
    assert len(lines) == 1
    assert "MLflow at http://127.0.0.1:9 is not reached" in lines[0]
    (spool,) = spools(root / "tracking")
    assert spool.is_complete()
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    configure({"run": {"row": "big", "pair": "en-de"}})
    with tracking.open_run("report"):
        pass
    runs = {run.info.run_name: run for run in recorded(root)}
    assert (runs["base"].info.status, runs["base"].data.metrics["bleu"]) == ("FINISHED", 27.3)
    assert spools(root / "tracking") == []


@contextlib.contextmanager
def serving(root: Path, port: int) -> Iterator[None]:
    """An MLflow server on the store of `root`, from its first answer on."""
    command = [
        "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
        "--backend-store-uri", f"sqlite:///{root / 'mlflow.db'}", "--artifacts-destination", str(root / "mlartifacts"),
    ]  # fmt: skip
    environment = {
        **os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }  # fmt: skip
    with (root / "server.log").open("a") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_until(lambda: answers(f"http://127.0.0.1:{port}/health"), 200)
        yield
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10):
            return True
    except OSError:
        return False


def test_a_server_that_is_stopped_for_a_while_loses_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    with contextlib.ExitStack() as again:
        with tracking.open_run("train") as tracker:
            with serving(root, port):
                for update in range(1, 51):
                    tracker.metrics({"loss": 1 / update}, update)
                wait_until(lambda: any(spool.state().get("offset") for spool in spools(root / "tracking")), 200)
            for update in range(51, 101):
                tracker.metrics({"loss": 1 / update}, update)
            told = f"MLflow at http://127.0.0.1:{port} is not reached"
            said = ""
            end = time.monotonic() + 200
            while told not in said:
                assert time.monotonic() < end, said
                time.sleep(0.2)
                said += capfd.readouterr().err
            again.enter_context(serving(root, port))
        (run,) = recorded(root)
    assert run.info.status == "FINISHED"
    assert history(root, run, "loss") == [(update, 1 / update) for update in range(1, 101)]


def test_without_mlflow_one_line_is_told(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with tracking.open_run("report") as tracker:
        tracker.metrics({"bleu": 27.3})
    lines = capfd.readouterr().err.strip().split("\n")
    assert len(lines) == 1
    assert lines[0].startswith("report: tracking: MLflow is not installed: kept in ")
    (spool,) = spools(root / "tracking")
    assert [event.get("values") for event in spool.read()[0]][:2] == [None, {"bleu": 27.3}]


def test_before_there_is_a_configuration_nothing_is_tracked(root: Path) -> None:
    Path("results/config.yaml").unlink()
    with pytest.raises(ValueError, match="refused"), tracking.open_run("resolve"):
        raise ValueError("refused")
    assert not (root / "tracking").exists()


def test_a_run_is_named_by_its_orchestrator_where_there_is_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = tracking.folder()
    monkeypatch.setenv("WMT_RUN", "../flow/1")
    assert tracking.folder() == root / "tracking" / "___flow_1"
    assert alone is not None
    assert alone.parent == root / "tracking"


def test_code_of_training_that_differs_is_another_run(root: Path) -> None:
    Path("dvc.yaml").write_text("stages: {train: {cmd: x, deps: [model.py]}, decode: {cmd: x, deps: [search.py]}}")
    Path("model.py").write_text("a = 1\n")
    Path("search.py").write_text("a = 1\n")
    before = tracking.folder()
    Path("search.py").write_text("a = 2\n")
    assert tracking.folder() == before
    Path("model.py").write_text("a = 2\n")
    assert tracking.folder() != before


def test_telling_costs_little(root: Path) -> None:
    with tracking.open_run("decode") as tracker:
        tracker.metrics({"loss": 1.0}, 0)
        start = time.process_time()
        for update in range(1, 1001):
            tracker.metrics({"loss": 1.0, "nll": 1.0, "tokens_per_second": 1.0}, update)
        seconds = time.process_time() - start
    assert seconds < 1.0, "under a millisecond an event, where an update takes tenths of a second"


def test_a_line_still_being_written_waits(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "run")
    spool.make(b"{}")
    spool.append("train", "tags", values={"a": "b\u2028c"})
    _, offset = spool.read()
    with spool.events.open("ab") as file:
        file.write(b'{"half')
    assert spool.read(offset) == ([], offset)
    assert [event["values"] for event in spool.read()[0]] == [{"a": "b\u2028c"}]


def stop(error: Exception, stage: str, values: Mapping[str, float], update: int | None = None) -> None:
    """A stage that measures something and ends by an error."""
    with tracking.open_run(stage) as tracker:
        tracker.metrics(values, update)
        raise error


def wait_until(condition: object, seconds: float = 200) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.1)


def test_a_patience_that_is_no_number_is_told_before_the_stage_begins(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WMT_TRACKING_PATIENCE", "a minute")
    with pytest.raises(InputError, match="WMT_TRACKING_PATIENCE is 'a minute'"), tracking.open_run("score"):
        pytest.fail("the stage began")
