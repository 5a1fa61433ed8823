"""What `make serve` refuses before it starts anything; tests/end_to_end/test_services.py starts it."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from command_line import wmt
from orchestra import until

from pipeline.orchestration import services
from pipeline.orchestration.prefect_api import is_dead

ROOT = Path(__file__).resolve().parents[3]


def refused(state: Path, **variables: str) -> str:
    """What the services say as they end at once."""
    environment = {**os.environ, "WMT_STATE": str(state), **variables}
    command = [sys.executable, "-m", "pipeline.cli", "serve"]
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert not (state / "prefect/login.json").exists()
    assert not (state / "mlflow.db").exists()
    return result.stderr


@pytest.fixture
def busy() -> Iterator[socket.socket]:
    """A port at which a stranger listens."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server


@pytest.mark.parametrize("variable", ["MLFLOW_PORT", "PREFECT_PORT"])
def test_a_busy_port(tmp_path: Path, busy: socket.socket, variable: str) -> None:
    port = busy.getsockname()[1]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        others = dict.fromkeys(("MLFLOW_PORT", "PREFECT_PORT"), str(free.getsockname()[1]))
    said = refused(tmp_path, **{**others, variable: str(port)})
    assert said == (
        f"serve: port {port} cannot be used (Address already in use): end the program that listens there, or set "
        f"{variable} to a free port\n"
    )


def test_one_port_for_both_and_what_is_no_port(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    said = refused(tmp_path, MLFLOW_PORT=port, PREFECT_PORT=port)
    assert said == f"serve: MLFLOW_PORT and PREFECT_PORT are both {port}: name two different ports\n"
    said = refused(tmp_path, MLFLOW_PORT=port, PREFECT_PORT="65536")
    assert said == "serve: PREFECT_PORT is '65536': it must be a port, from 1 to 65535\n"


def test_a_second_start_on_the_same_state(tmp_path: Path) -> None:
    (tmp_path / "prefect").mkdir()
    with (tmp_path / "prefect/services.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            ports = {"MLFLOW_PORT": str(one.getsockname()[1]), "PREFECT_PORT": str(other.getsockname()[1])}
        said = refused(tmp_path, **ports)
    assert said == f"serve: `make serve` or `make ui` runs already on {tmp_path}: end it first\n"


def test_a_run_whose_process_is_gone_is_dead() -> None:
    """Its number may have gone to another process; a run that has just begun may not have one yet."""
    process = subprocess.Popen(["sleep", "600"], env={**os.environ, "PREFECT__FLOW_RUN_ID": "one"})
    try:
        # While it starts its program, a process has no environment.
        until(lambda: psutil.Process(process.pid).environ(), "the environment of the process")

        def run(identity: str, number: int | None, since: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
            return {"id": identity, "infrastructure_pid": number and str(number), "state": {"timestamp": since}}

        now = datetime.now(UTC).isoformat()
        for worker_is_dead in (True, False):
            assert not is_dead(run("one", process.pid), worker_is_dead)
            assert is_dead(run("two", process.pid), worker_is_dead)
            assert is_dead(run("two", process.pid, now), worker_is_dead) is worker_is_dead
            assert is_dead(run("one", None), worker_is_dead) is worker_is_dead
    finally:
        process.kill()
        process.wait()
    assert is_dead(run("one", process.pid), worker_is_dead=False)


def test_a_webhook_is_for_a_server_that_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without one, Prefect's client would start a server of its own, which ends with the command."""
    monkeypatch.setenv("WMT_STATE", str(tmp_path))
    monkeypatch.setattr(services, "ROOT", tmp_path)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert wmt("notify", "https://example.org/failed") == 1
    said = f"notify: no Prefect server answers: run `make serve` in {tmp_path} first, or set PREFECT_API_URL\n"
    assert capsys.readouterr().err == said


def test_a_list_of_runs_without_a_server_is_that_of_the_experiments() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        server = f"http://127.0.0.1:{closed.getsockname()[1]}"
        assert services.runs_page(server) == f"{server}/#/experiments?workflowType=machine_learning"
