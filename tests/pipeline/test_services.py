"""What `make serve` refuses before it starts anything; tests/end_to_end/test_services.py starts it."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def refused(state: Path, **variables: str) -> str:
    """What the services say as they end at once."""
    environment = {**os.environ, "WMT_STATE": str(state), **variables}
    command = [sys.executable, "-m", "pipeline.services", "--worker"]
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
        f"services: port {port} cannot be used (Address already in use): end the program that listens there, or set "
        f"{variable} to a free port\n"
    )


def test_one_port_for_both_and_what_is_no_port(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    said = refused(tmp_path, MLFLOW_PORT=port, PREFECT_PORT=port)
    assert said == f"services: MLFLOW_PORT and PREFECT_PORT are both {port}: name two different ports\n"
    said = refused(tmp_path, MLFLOW_PORT=port, PREFECT_PORT="65536")
    assert said == "services: PREFECT_PORT is '65536': it must be a port, from 1 to 65535\n"


def test_a_second_start_on_the_same_state(tmp_path: Path) -> None:
    (tmp_path / "prefect").mkdir()
    with (tmp_path / "prefect/services.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            ports = {"MLFLOW_PORT": str(one.getsockname()[1]), "PREFECT_PORT": str(other.getsockname()[1])}
        said = refused(tmp_path, **ports)
    assert said == f"services: `make serve` or `make ui` runs already on {tmp_path}: end it first\n"
