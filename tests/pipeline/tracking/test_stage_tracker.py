"""Runs against a real MLflow store (sqlite), through the process that sends them."""

from __future__ import annotations

import contextlib
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
from typing import Any

import pytest
import yaml
from mlflow import MlflowClient
from mlflow.entities import Run

from nmt.config import InputError
from pipeline.config.settings import ArchiveSettings, ParallelSettings
from pipeline.corpora.archive_cache import obtain
from pipeline.corpora.fetch import Patience
from pipeline.stage import Interrupted
from pipeline.tracking import courier, stage_tracker
from pipeline.tracking.spool import Spool, spools

MEMBER = {"archive": "a", "member": "a.en", "path": None}
TRAIN, VALID, TEST = ({"name": name, "source": MEMBER, "target": MEMBER} for name in ("news", "valid", "test"))
CONFIGURATION = {
    "run": {"row": "base", "pair": "en-de"},
    "data": {
        "source": "en", "target": "de", "train": [TRAIN], "valid": VALID, "test": TEST,
        "archives": [{
            "name": "a", "urls": ["https://example.org/a.tgz"], "bytes": None, "sha256": "0" * 64, "md5": None,
            "licence": "", "source": "",
        }],
    },
    "model": {"N": 6, "P_drop": 0.1},
}  # fmt: skip


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
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[3]))
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


def corpora(run: Run) -> dict[str, str]:
    """The digests of a run's inputs by name."""
    return {corpus.dataset.name: corpus.dataset.digest for corpus in run.inputs.dataset_inputs}


def history(root: Path, run: Run, key: str) -> list[tuple[int, float]]:
    """Every value of a metric with its update."""
    with connected(root / "mlflow.db") as client:
        return sorted((metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, key))


def test_the_stages_of_one_repro_are_one_run(root: Path) -> None:
    with stage_tracker.open_run("resolve") as tracker:
        tracker.tags({"row": "base"})
    with stage_tracker.open_run("tokenize") as tracker:
        tracker.metrics({"pairs": 20_000})
    assert recorded(root) == [], "short stages do not pay for MLflow"
    with stage_tracker.open_run("train") as tracker:
        for update in range(1, 1501):
            tracker.metrics({"loss": 5 - update / 1000, "learning_rate": 1e-3}, update)
        tracker.metrics({"pairs": 100_000})
    (between,) = recorded(root)
    assert between.info.status == "FINISHED"
    Path("report.md").write_text("# Report\n")
    with stage_tracker.open_run("report") as tracker:
        tracker.metrics({"bleu": 27.3})
        tracker.artifact(Path("report.md"))
        Path("report.md").unlink()
    (run,) = recorded(root)
    assert (run.info.run_name, run.info.status) == ("base", "FINISHED")
    assert run.data.params.items() >= {"model.N": "6", "model.P_drop": "0.1", "data.train.0.name": "news"}.items()
    assert (
        run.data.metrics.items()
        >= {"tokenize/pairs": 20_000.0, "train/pairs": 100_000.0, "bleu": 27.3, "loss": 3.5}.items()
    )
    assert {f"{stage}/seconds" for stage in ("resolve", "tokenize", "train", "report")} <= set(run.data.metrics)
    assert {"commit", "differing_files", "version.torch", "hardware.cpu", "row"} <= set(run.data.tags)
    corpora = {corpus.dataset.name: corpus.tags[0].value for corpus in run.inputs.dataset_inputs}
    assert corpora == {"news": "training", "valid": "validation", "test": "test"}
    assert len(history(root, run, "loss")) == 1500
    assert [path.read_text() for path in root.glob("mlartifacts/*/artifacts/report.md")] == ["# Report\n"]
    assert spools(root / "tracking") == [], "all was sent"


def test_a_finished_run_is_not_reopened_and_another_configuration_is_another_run(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage_tracker.open_run("report") as tracker:
        tracker.metrics({"bleu": 1.0})
    with monkeypatch.context() as without_mlflow:
        without_mlflow.setattr("importlib.util.find_spec", lambda _: None)
        for bleu in (2.0, 3.0):
            with stage_tracker.open_run("report") as tracker:
                tracker.metrics({"bleu": bleu})
    configure({"run": {"row": "big", "pair": "en-fr"}, "data": with_archive(sha256="1" * 64)})
    with stage_tracker.open_run("report") as tracker:
        tracker.metrics({"bleu": 4.0})
    runs = sorted(recorded(root), key=lambda run: run.data.metrics["bleu"])
    first, second, third, other = map(corpora, runs)
    assert first.keys() == {"news", "valid", "test"}
    assert first == second == third
    assert not first.items() & other.items(), "another archive is other text"
    assert [(run.info.run_name, run.data.metrics["bleu"]) for run in runs] == [
        ("base", 1.0), ("base", 2.0), ("base", 3.0), ("big", 4.0),
    ]  # fmt: skip


def test_an_interrupted_stage_ends_killed_and_goes_on_in_the_same_run_until_another_fails(root: Path) -> None:
    unchecked = with_archive(urls=[Path("a.tgz").absolute().as_uri()], sha256=None)
    configure({"data": unchecked})
    with pytest.raises(Interrupted):
        stop(Interrupted(), "train", {"loss": 5.0}, 1)
    (run,) = recorded(root)
    assert run.info.status == "KILLED"
    assert corpora(run) == {}, "the text of an archive without a checksum is not known before its download"
    with tarfile.open("a.tgz", "w:gz") as file:
        file.add(__file__, "a.en")
    obtain([ArchiveSettings.model_validate(each) for each in unchecked["archives"]], root, Patience())
    with stage_tracker.open_run("train") as tracker:
        # A resumed training tells its history again.
        tracker.metrics({"loss": 5.0}, 1)
        tracker.metrics({"loss": 4.0}, 2)
    (run,) = recorded(root)
    assert run.info.status == "FINISHED"
    assert history(root, run, "loss") == [(1, 5.0), (2, 4.0)]
    assert corpora(run).keys() == {"news", "valid", "test"}
    with pytest.raises(InputError, match="too few"), stage_tracker.open_run("average"):
        raise InputError("too few checkpoints")
    assert [run.info.status for run in recorded(root)] == ["FAILED"], "although it measured nothing"


def test_a_stage_that_is_sigkilled_ends_killed_without_help(root: Path) -> None:
    program = (
        "import time\nfrom pipeline.tracking import stage_tracker\n"
        "with stage_tracker.open_run('train') as tracker:\n"
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


FAILURES: dict[str, tuple[type[BaseException], str]] = {
    "download": (InputError, "FAILED"),
    "tokenize": (OSError, "FAILED"),
    "learn_subwords": (KeyboardInterrupt, "KILLED"),
    "binarize": (MemoryError, "FAILED"),
    "train": (ChildProcessError, "FAILED"),
    "average": (InputError, "FAILED"),
    "decode": (Interrupted, "KILLED"),
    "score": (InputError, "FAILED"),
    "attention": (RuntimeError, "FAILED"),
    "report": (SystemExit, "FAILED"),
}
"""Stage -> what ends it, and the status of the run."""


def test_the_next_start_sends_how_earlier_runs_ended(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without_mlflow:
        without_mlflow.setattr("importlib.util.find_spec", lambda _: None)
        for stage, (error, _) in FAILURES.items():
            configure({"run": {"row": stage, "pair": "en-de"}})
            with stage_tracker.open_run("binarize"):
                pass
            with pytest.raises(error), stage_tracker.open_run(stage):
                raise error("before it measured anything")
        configure({"run": {"row": "sigkill", "pair": "en-de"}})
        program = (
            "import os\nfrom pipeline.tracking import stage_tracker\n"
            "with stage_tracker.open_run('score'): os.kill(os.getpid(), 9)"
        )
        subprocess.run([sys.executable, "-c", program], check=False)
        configure({"run": {"row": "unfinished", "pair": "en-de"}})
        with stage_tracker.open_run("binarize"):
            pass
    configure({})
    with stage_tracker.open_run("train") as tracker:
        tracker.metrics({"loss": 5.0}, 1)
    spool = Spool(stage_tracker.folder() or root)
    # As if stage and sender had both been killed at once: running, with something still to be sent.
    with connected(root / "mlflow.db") as client:
        client.update_run(spool.state()["run"], status="RUNNING")
    spool.set_state({**spool.state(), "status": "RUNNING"})
    spool.append("train", "begin")
    spool.append("train", "metrics", values={"loss": 4.0}, update=2)
    configure({"run": {"row": "big", "pair": "en-de"}})
    with stage_tracker.open_run("report"):
        pass
    runs = {run.info.run_name: run for run in recorded(root)}
    assert (runs["base"].info.status, runs["base"].data.metrics["loss"]) == ("KILLED", 4.0)
    assert runs["big"].info.status == "FINISHED"
    assert {stage: runs[stage].info.status for stage in FAILURES} == {
        stage: how for stage, (_, how) in FAILURES.items()
    }
    assert runs["sigkill"].info.status == "KILLED"
    assert "unfinished" not in runs, "its next stage sends it"


def test_a_digest_follows_the_bytes_of_both_sides() -> None:
    def parallel(*sides: dict[str, str | None]) -> ParallelSettings:
        return ParallelSettings.model_validate({"name": "x", "source": sides[0], "target": sides[1]})

    archives = {"a": "0" * 64, "b": "1" * 64, "mirror": "0" * 64, "unknown": None}
    english, german = {"archive": "a", "member": "a.en"}, {"archive": "a", "member": "a.de"}
    base = parallel(english, german)
    local = [parallel({"path": "x", "sha256": digit * 64}, german) for digit in "01"]
    others = [
        parallel({**english, "member": "b.en"}, german), parallel({**english, "archive": "b"}, german),
        parallel(english, {**german, "archive": "b"}), parallel(german, english), *local,
    ]  # fmt: skip
    assert len({courier.digest(text, archives) for text in (base, *others)}) == 1 + len(others)
    same = parallel({**english, "archive": "mirror"}, {**german, "archive": "mirror"})
    assert courier.digest(same, archives) == courier.digest(base, archives)
    assert courier.digest(parallel(english, {**german, "archive": "unknown"}), archives) is None


def test_a_server_that_is_down_stops_nothing_and_gets_everything_later(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # Nothing listens on this port: connections are refused.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://someone:{PASSWORD}@127.0.0.1:9")
    with pytest.raises(InputError):
        stop(InputError("refused"), "report", {"bleu": 27.3})
    said = capfd.readouterr()
    lines = said.err.strip().split("\n")
    assert len(lines) == 1
    assert "MLflow at http://***@127.0.0.1:9 is not reached" in lines[0]
    assert PASSWORD not in said.out + said.err
    assert leaks(root) == []
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    configure({"run": {"row": "big", "pair": "en-de"}})
    with stage_tracker.open_run("report"):
        pass
    runs = {run.info.run_name: run for run in recorded(root)}
    assert (runs["base"].info.status, runs["base"].data.metrics["bleu"]) == ("FAILED", 27.3)
    assert [spool.is_complete() for spool in spools(root / "tracking")] == [False], "the failed one can go on"


PASSWORD = "correct-horse"


def leaks(root: Path) -> list[Path]:
    """The files that hold the password."""
    return [path for path in root.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]


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


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


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
                wait_until(lambda: any(spool.state().get("offset") for spool in spools(root / "tracking")), 200)
            for update in range(51, 101):
                tracker.metrics({"loss": 1 / update}, update)
            told = f"MLflow at http://***@127.0.0.1:{port} is not reached"
            said = ""
            end = time.monotonic() + 200
            while told not in said:
                assert time.monotonic() < end, said
                time.sleep(0.2)
                said += capfd.readouterr().err
            again.enter_context(reachable(behind, port))
        (run,) = recorded(root)
    assert PASSWORD not in said + "".join(capfd.readouterr())
    assert leaks(root) == []
    assert run.info.status == "FINISHED"
    assert history(root, run, "loss") == [(update, 1 / update) for update in range(1, 101)]


def test_without_mlflow_one_line_is_told(
    root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with stage_tracker.open_run("report") as tracker:
        tracker.metrics({"bleu": 27.3})
    lines = capfd.readouterr().err.strip().split("\n")
    assert len(lines) == 1
    assert lines[0].startswith("report: tracking: MLflow is not installed: kept in ")
    (spool,) = spools(root / "tracking")
    assert [event.get("values") for event in spool.read()[0]][:2] == [None, {"bleu": 27.3}]


def test_a_run_whose_results_cannot_be_read_at_its_end_has_failed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    Path("results/metrics.json").write_text("{")
    with pytest.raises(ValueError, match="Expecting property name"), stage_tracker.open_run("report"):
        pass
    (spool,) = spools(root / "tracking")
    assert (spool.ending(), spool.is_complete()) == ("FAILED", False)


def test_before_there_is_a_configuration_nothing_is_tracked(root: Path) -> None:
    Path("results/config.yaml").unlink()
    with pytest.raises(ValueError, match="refused"), stage_tracker.open_run("resolve"):
        raise ValueError("refused")
    assert not (root / "tracking").exists()


def test_a_run_is_named_by_its_orchestrator_where_there_is_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = stage_tracker.folder()
    monkeypatch.setenv("WMT_RUN", "../flow/1")
    assert stage_tracker.folder() == root / "tracking" / "___flow_1"
    assert alone is not None
    assert alone.parent == root / "tracking"


def test_code_of_training_that_differs_is_another_run(root: Path) -> None:
    Path("dvc.yaml").write_text("stages: {train: {cmd: x, deps: [model.py]}, decode: {cmd: x, deps: [search.py]}}")
    Path("model.py").write_text("a = 1\n")
    Path("search.py").write_text("a = 1\n")
    before = stage_tracker.folder()
    Path("search.py").write_text("a = 2\n")
    assert stage_tracker.folder() == before
    Path("model.py").write_text("a = 2\n")
    assert stage_tracker.folder() != before


def test_telling_costs_little(root: Path) -> None:
    with stage_tracker.open_run("decode") as tracker:
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
    with stage_tracker.open_run(stage) as tracker:
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
    with pytest.raises(InputError, match="WMT_TRACKING_PATIENCE is 'a minute'"), stage_tracker.open_run("score"):
        pytest.fail("the stage began")
