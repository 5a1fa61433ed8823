"""What `make serve` refuses before it starts anything, and how a worker's flows end; tests/end_to_end starts it."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from agents import is_over, until
from clones import ROOT
from ports import free_port
from refusals import check_refusal

from pipeline.flows import services


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The state root, in which nothing is left of a start that is refused."""
    for name, value in (("WMT_STATE", tmp_path), ("MLFLOW_PORT", free_port()), ("PREFECT_PORT", free_port())):
        monkeypatch.setenv(name, str(value))
    yield tmp_path
    assert not (tmp_path / services.LOGIN).exists()


@pytest.mark.parametrize("port", ["taken", "http", "0"])
def test_ports_that_cannot_be_used(state: Path, port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = port.replace("taken", str(server.getsockname()[1]))
        monkeypatch.setenv("PREFECT_PORT", port)
        check_refusal(f"^PREFECT_PORT is {port}, which is no free port: end the ", services.serve, worker=True)


def test_two_servers_need_two_ports(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_PORT", os.environ["MLFLOW_PORT"])
    check_refusal(r"^MLFLOW_PORT and PREFECT_PORT are both \d+: set one of", services.serve, worker=True)


def test_a_second_start_on_the_same_state(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (state / "prefect").mkdir()
    with (state / "prefect/services.lock").open("w") as file, socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("MLFLOW_PORT", str(server.getsockname()[1]))  # as the first start's servers listen
        fcntl.flock(file, fcntl.LOCK_EX)
        check_refusal(f"^`make serve` or `make ui` runs already on {state}: end it first$", services.serve, worker=True)


def test_the_workers_runs_are_tracked_where_the_users_others_are(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"MLFLOW_TRACKING_{name}" for name in ("URI", "USERNAME", "PASSWORD")]
    given: list[list[str | None]] = []
    monkeypatch.setattr(services, "start", lambda _, env, **__: given.append([env.get(name) for name in names]))
    monkeypatch.setattr(services.Services, "wait_for", lambda *_: None)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess((), 0))
    for address in (None, f"sqlite:///{state}/mlflow.db", "http://team:5000"):
        if address is not None:
            monkeypatch.setenv(names[0], address)
        started = services.Services(state)
        started.start_servers()
        started.start_worker()
    ours = [started.mlflow, "wmt"]
    assert [login[:2] for login in given[:8]] == [ours] * 8
    assert given[8] == ["http://team:5000", None, None], "and is not told our password"


WORKER = """
import os, signal, subprocess, sys, time
role, deaf = sys.argv[1:]
if role == "worker":
    subprocess.Popen([sys.executable, __file__, "flow", deaf], start_new_session=True)
reported = lambda *_: deaf or (print(role, "reported", flush=True), os._exit(0))
signal.signal(signal.SIGTERM, reported)
print(role, os.getpid(), flush=True)
while True:
    time.sleep(0.1)
"""


@pytest.mark.parametrize(
    ("ended", "deaf", "status", "output"),
    [
        *((end, "", code, "flow reported\n") for end, code in (("worker.py", 137), ("SIGTERM", 143), ("SIGINT", 130))),
        ("SIGTERM SIGTERM", "deaf", 143, ""),
    ],
)
def test_flows_report_when_their_worker_ends(tmp_path: Path, ended: str, deaf: str, status: int, output: str) -> None:
    """And a second signal kills those that do not."""
    (tmp_path / "worker.py").write_text(WORKER)
    program = [sys.executable, str(tmp_path / "worker.py"), "worker", deaf]
    command = [sys.executable, "-m", "pipeline.flows.worker", *program]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        pids = dict(process.stdout.readline().split() for _ in range(2))
        worker, flow = (psutil.Process(int(pids[role])) for role in ("worker", "flow"))
        until(lambda: psutil.Process(process.pid).cpu_times(), "the wrapper")
        if ended == "worker.py":
            worker.kill()
        for number in ended.split()[: 0 if ended == "worker.py" else None]:
            process.send_signal(getattr(signal, number))
            until(lambda: is_over(worker), "the worker's end")
        assert process.wait(timeout=60) == status
        assert is_over(flow)
        assert process.stdout.read() == output
