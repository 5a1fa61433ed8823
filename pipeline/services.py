"""MLflow, Prefect's server and a worker on this machine's loopback, for one person. Ctrl-C ends them all.

`python -m pipeline.services [--worker]`; $MLFLOW_PORT and $PREFECT_PORT name other ports than 5000 and 4200. Who
is logged in on this machine reaches them; nobody else does.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from nmt.config import InputError
from nmt.files import writing
from pipeline.stage import state_root

POOL = "wmt"
PATIENCE = 120.0
"""Seconds that a server has to answer."""
GRACE = 100.0
"""Seconds that a worker has to end its runs, and these to save their checkpoints."""
SHORT = 10.0
"""Seconds that a service must have lived to be worth starting again."""


class Stopped(Exception):
    """The user asked for the end."""


class Service:
    """A process that stays, in a session of its own: Ctrl-C is ours to hand on."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name, self.command, self.environment = name, command, environment
        self.start()

    def start(self) -> None:
        """Start it, again where it ended."""
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", *self.command], env=self.environment, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip

    def ended(self) -> str:
        """One clause about a process that ended; nothing while it lives."""
        status = self.process.poll()
        return "" if status is None else f"{self.name} ended with status {status}"

    def stop(self) -> None:
        """SIGTERM, time for a worker's runs to save their checkpoints, SIGKILL."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=GRACE)
        self.kill()

    def kill(self) -> None:
        """End what is left of it: servers have workers of their own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Services:
    """Processes that are started one after the other and ended in the reverse order."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        self.running: list[Service] = []

    def start(self, name: str, *command: str) -> None:
        """Start a process that stays."""
        self.running.append(Service(name, command, self.environment))

    def call(self, *command: str) -> None:
        """Run a process to its end; raises InputError where it fails."""
        result = subprocess.run(
            [sys.executable, "-m", *command], env=self.environment, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        if result.returncode != 0:
            raise InputError(f"`{' '.join(command)}` failed: {(result.stdout + result.stderr).strip()}")

    def wait_for(self, url: str) -> None:
        """Wait until a server answers; raises InputError where it does not, or where one has ended."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if told := [service.ended() for service in self.running if service.ended()]:
                raise InputError(f"{told[0]}; what it said stands above")
            try:
                with urllib.request.urlopen(url, timeout=5):  # noqa: S310 - it is http: we made it
                    return
            except OSError:
                time.sleep(0.1)
        raise InputError(f"{url} does not answer after {PATIENCE:.0f} s")

    def watch(self) -> NoReturn:
        """Start again what ends, which none should; raises InputError where that does not help."""
        while True:
            for service in self.running:
                if told := service.ended():
                    service.kill()
                    if time.monotonic() - service.started < SHORT:
                        raise InputError(f"{told} at once; what it said stands above")
                    print(f"{told}; starting it again", flush=True)
                    service.start()
            time.sleep(0.5)

    def stop(self) -> None:
        """End them all, the last one first."""
        for service in reversed(self.running):
            service.stop()


def run(worker: bool) -> None:
    """Start, tell the addresses, and wait for the end."""
    root = state_root().absolute()
    root.mkdir(parents=True, exist_ok=True)
    mlflow, prefect = (_address(*pair) for pair in (("MLFLOW_PORT", 5000), ("PREFECT_PORT", 4200)))
    environment = {
        **os.environ,
        "DO_NOT_TRACK": "1", "MLFLOW_DISABLE_TELEMETRY": "true", "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_API_URL": f"{prefect}/api", "MLFLOW_TRACKING_URI": mlflow, "WMT_STATE": str(root),
        # A dozen processes for evaluating language models, which nobody here needs.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "PREFECT_LOGGING_SERVER_LEVEL": "WARNING", "PREFECT_PLUGINS_ENABLED": "false", "PWD": str(Path.cwd()),
    }  # fmt: skip
    services, address = Services(environment), root / "prefect-api"
    try:
        services.start(
            "MLflow", "mlflow", "server", "--host", "127.0.0.1", "--port", mlflow.rsplit(":", 1)[1], "--workers", "1",
            "--uvicorn-opts", "--log-level warning",
            "--backend-store-uri", f"sqlite:///{root / 'mlflow.db'}",
            "--default-artifact-root", str(root / "mlartifacts"),
        )  # fmt: skip
        services.start(
            "Prefect", "prefect", "server", "start", "--host", "127.0.0.1", "--port", prefect.rsplit(":", 1)[1]
        )
        services.wait_for(f"{prefect}/api/health")
        services.wait_for(f"{mlflow}/health")
        with writing(address) as temporary:
            temporary.write_text(environment["PREFECT_API_URL"], encoding="utf-8")
        if worker:
            # It makes the pool where there is none.
            services.start("the worker", "prefect", "worker", "start", "--pool", POOL, "--type", "process")
            services.wait_for(f"{prefect}/api/work_pools/{POOL}")
            services.call("prefect", "--no-prompt", "deploy", "--all", "--prefect-file", "infra/prefect.yaml")
        print(f"MLflow:  {mlflow}\nPrefect: {prefect}", flush=True)
        if worker:
            print("a run: prefect deployment run wmt-en-de -p row=sample", flush=True)
        services.watch()
    finally:
        address.unlink(missing_ok=True)
        services.stop()


def _address(variable: str, port: int) -> str:
    wanted = os.environ.get(variable) or str(port)
    if not wanted.isdecimal() or not 0 < int(wanted) < 65536:
        raise InputError(f"{variable} is {wanted!r}: it must be a port, from 1 to 65535")
    return f"http://127.0.0.1:{wanted}"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.services", description=__doc__)
    parser.add_argument("--worker", action="store_true", help="run what is asked of the deployments, too")
    options = parser.parse_args()

    def stop(*_: object) -> None:
        raise Stopped

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        run(options.worker)
    except Stopped:
        return 0
    except InputError as error:
        print(f"services: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
