"""MLflow, Prefect's server and a worker on this machine's loopback, for one person. Ctrl-C ends them all.

`wmt serve`, or `wmt ui` without a worker; $MLFLOW_PORT and $PREFECT_PORT name other ports than 5000 and
4200. Prefect asks for a password, a new one at each start, which commands typed in this environment find by themselves.
A second Ctrl-C does not wait for checkpoints.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from nmt.common.files import writing
from nmt.config import InputError
from pipeline.orchestration.prefect_api import POOL, SETTLE, WORKER, Prefect
from pipeline.stage import state_root

LOGIN = "prefect/login.json"
"""The file in the state root with the settings of Prefect's clients, while the server runs."""
PATIENCE = 120.0
"""Seconds that a server has to answer."""
GRACE = 100.0
"""Seconds that a worker has to end its runs, and these to save their checkpoints."""
SERVER_GRACE = 10.0
"""Seconds that a server has to end."""
SHORT = 10.0
"""Seconds that a service must have lived to be worth starting again."""


class Stopped(Exception):
    """The user asked for the end."""


class Signals:
    """What the user asked for so far. Flags, because an exception could come while services are being ended."""

    def __init__(self) -> None:
        self.stopped = False
        self.hurried = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup has it ignored, and a shell has Ctrl-C ignored in what it runs in the background.
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._receive)

    def _receive(self, number: int, _: object) -> None:
        # A terminal that closes may send SIGHUP more than once; Ctrl-C is typed.
        self.hurried |= self.stopped and number == signal.SIGINT
        self.stopped = True

    def check(self) -> None:
        """Raise Stopped where the user asked for the end."""
        if self.stopped:
            raise Stopped


class Service:
    """A process that stays, under a guard that ends it when this process dies."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], grace: float) -> None:
        self.name, self.command, self.environment, self.grace = name, command, environment, grace
        self.started, self.process = time.monotonic(), self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        # In a session of its own: Ctrl-C is ours to hand on.
        return subprocess.Popen(
            [sys.executable, "-m", "pipeline.runs.guard", str(self.grace), *self.command], env=self.environment,
            stdin=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def restart(self) -> None:
        """Start it again where it ended."""
        self._close()
        self.started, self.process = time.monotonic(), self._start()

    def ended(self) -> str:
        """One clause about a process that ended; nothing while it lives."""
        status = self.process.poll()
        return "" if status is None else f"{self.name} ended with status {status}"

    def stop(self, signals: Signals) -> None:
        """End it and wait for that: SIGTERM, time for a worker's runs to save their checkpoints, SIGKILL."""
        self._close()
        while not self.ended() and not signals.hurried:
            time.sleep(0.1)
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=SERVER_GRACE)
        self.process.kill()
        self.process.wait()

    def _close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()


class Services:
    """Processes that are started one after the other and ended in the reverse order."""

    def __init__(self, environment: Mapping[str, str], prefect: Prefect, signals: Signals) -> None:
        self.environment = dict(environment)
        self.prefect, self.signals = prefect, signals
        self.servers: list[Service] = []
        self.worker: Service | None = None

    def start_server(self, name: str, *command: str) -> None:
        """Start a server."""
        self.servers.append(Service(name, command, self.environment, SERVER_GRACE))

    def start_worker(self) -> None:
        """Start the worker, which makes the pool where there is none."""
        command = ("prefect", "worker", "start", "--pool", POOL, "--type", "process", "--name", WORKER)
        self.worker = Service("the worker", command, self.environment, GRACE)

    def running(self) -> list[Service]:
        """All of them, in the order in which they were started."""
        return self.servers + ([self.worker] if self.worker else [])

    def call(self, *command: str) -> None:
        """Run a process to its end; raises InputError where it fails."""
        service = subprocess.Popen(
            [sys.executable, "-m", *command], env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        said = None
        try:
            while said is None:
                self.signals.check()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    said = service.communicate(timeout=0.2)[0]
        finally:
            service.kill()
            service.wait()
        if service.returncode != 0:
            raise InputError(f"`{' '.join(command)}` failed: {said.strip()}")

    def wait_for(self, url: str) -> None:
        """Wait until a server answers; raises InputError where it does not, or where one has ended."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            self.signals.check()
            if told := [service.ended() for service in self.running() if service.ended()]:
                raise InputError(f"{told[0]}; what it said stands above")
            request = urllib.request.Request(url, headers=self.prefect.headers)  # noqa: S310 - it is http: we made it
            with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=5):  # noqa: S310
                return
            time.sleep(0.1)
        raise InputError(f"{url} does not answer after {PATIENCE:.0f} s")

    def settle(self, worker_is_dead: bool) -> None:
        """Close the runs whose process is gone. A server that does not answer is asked again later."""
        with contextlib.suppress(OSError):
            self.prefect.settle(worker_is_dead)

    def watch(self) -> NoReturn:
        """Start again what ends, which none should; raises InputError where that does not help."""
        settled = time.monotonic()
        while True:
            self.signals.check()
            for service in self.running():
                if told := service.ended():
                    if time.monotonic() - service.started < SHORT:
                        raise InputError(f"{told} at once; what it said stands above")
                    print(f"{told}; starting it again", flush=True)
                    if service is self.worker:
                        self.settle(worker_is_dead=True)
                    service.restart()
            if self.worker is not None and time.monotonic() - settled > SETTLE:
                self.settle(worker_is_dead=False)
                settled = time.monotonic()
            time.sleep(0.2)

    def stop(self) -> None:
        """End them all: first the worker, so that its runs report to a server that answers."""
        if self.worker is not None:
            self.worker.stop(self.signals)
            if not self.signals.hurried:
                self.settle(worker_is_dead=True)
        for service in reversed(self.servers):
            service.stop(self.signals)


def serve(*, worker: bool) -> None:
    """Run MLflow, Prefect's server and perhaps a worker until SIGINT, SIGTERM or SIGHUP. Prints their addresses.

    Raises InputError where a port is not free, other services use the state root, or a service does not start.
    """
    with contextlib.suppress(Stopped):
        _run(worker, Signals())


def _run(worker: bool, signals: Signals) -> None:
    root = state_root().absolute()
    (root / "prefect").mkdir(parents=True, exist_ok=True)
    ports = free_ports({"MLFLOW_PORT": 5000, "PREFECT_PORT": 4200})
    mlflow, prefect = (f"http://127.0.0.1:{port}" for port in ports.values())
    login = f"wmt:{secrets.token_urlsafe(16)}"
    settings = {"PREFECT_API_URL": f"{prefect}/api", "PREFECT_API_AUTH_STRING": login}
    environment = {
        **os.environ, **settings,
        "DO_NOT_TRACK": "1", "MLFLOW_DISABLE_TELEMETRY": "true", "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "MLFLOW_TRACKING_URI": mlflow, "WMT_STATE": str(root), "PREFECT_HOME": str(root / "prefect"),
        "PREFECT_SERVER_API_AUTH_STRING": login, "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": _origins(ports["PREFECT_PORT"]),
        # A dozen processes for evaluating language models, which nobody here needs.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "PREFECT_LOGGING_SERVER_LEVEL": "WARNING", "PREFECT_PLUGINS_ENABLED": "false", "PWD": str(Path.cwd()),
    }  # fmt: skip
    services = Services(environment, Prefect(settings["PREFECT_API_URL"], login), signals)
    with alone(root), published(root / LOGIN, settings):
        try:
            services.start_server(
                "MLflow", "mlflow", "server", "--host", "127.0.0.1", "--port", str(ports["MLFLOW_PORT"]),
                "--workers", "1", "--uvicorn-opts", "--log-level warning",
                "--allowed-hosts", _origins(ports["MLFLOW_PORT"]).replace("http://", ""),
                "--cors-allowed-origins", _origins(ports["MLFLOW_PORT"]),
                "--backend-store-uri", f"sqlite:///{root / 'mlflow.db'}",
                "--default-artifact-root", str(root / "mlartifacts"),
            )  # fmt: skip
            services.start_server(
                "Prefect", "uvicorn", "--factory", "pipeline.orchestration.prefect_server:create_app", "--host",
                "127.0.0.1", "--port", str(ports["PREFECT_PORT"]), "--log-level", "warning",
            )  # fmt: skip
            services.wait_for(f"{prefect}/api/admin/version")
            services.wait_for(f"{mlflow}/health")
            if worker:
                services.settle(worker_is_dead=True)
                services.start_worker()
                services.wait_for(f"{prefect}/api/work_pools/{POOL}")
                services.call("prefect", "--no-prompt", "deploy", "--all", "--prefect-file", "infra/prefect.yaml")
            print(f"MLflow:  {mlflow}\nPrefect: {prefect}, password {login}", flush=True)
            if worker:
                print("a run: prefect deployment run wmt-en-de -p row=sample", flush=True)
            services.watch()
        finally:
            services.stop()


@contextlib.contextmanager
def alone(root: Path) -> Iterator[None]:
    """Hold the state root's databases; raises InputError where other services do."""
    with (root / "prefect/services.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"`make serve` or `make ui` runs already on {root}: end it first") from error
        yield


@contextlib.contextmanager
def published(path: Path, settings: Mapping[str, str]) -> Iterator[None]:
    """Have the settings in a file that the user alone can read, for commands in other terminals."""
    with writing(path) as temporary:
        temporary.touch(mode=0o600)
        temporary.write_text(json.dumps(settings) + "\n", encoding="utf-8")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def free_ports(defaults: Mapping[str, int]) -> dict[str, int]:
    """The port that each variable names. Raises InputError for what is no port, or not free."""
    ports: dict[str, int] = {}
    for variable, default in defaults.items():
        value = os.environ.get(variable) or str(default)
        if not value.isdecimal() or not 0 < int(value) < 65536:
            raise InputError(f"{variable} is {value!r}: it must be a port, from 1 to 65535")
        if int(value) in ports.values():
            raise InputError(f"{' and '.join([*ports, variable])} are both {value}: name two different ports")
        with socket.socket() as probe:
            # As servers do: a port whose last connections are about to time out is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", int(value)))
            except OSError as error:
                raise InputError(
                    f"port {value} cannot be used ({error.strerror}): end the program that listens there, or set "
                    f"{variable} to a free port"
                ) from error
        ports[variable] = int(value)
    return ports


def _origins(port: int) -> str:
    return f"http://127.0.0.1:{port},http://localhost:{port}"
