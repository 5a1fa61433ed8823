"""MLflow, Prefect's server and a worker on this machine's loopback interface, for one person. Ctrl-C ends them all.

`wmt serve`, or `wmt ui` without a worker. $MLFLOW_PORT and $PREFECT_PORT set other ports than 5000 and 4200. Prefect
asks for a password, a new one at each start; `prefect` commands of this environment find it by themselves. A second
Ctrl-C does not wait for states to be saved.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlencode, urlsplit

from filelock import FileLock, Timeout

from nmt.common.files import writing
from nmt.config import InputError
from pipeline.common.stage import state_root, state_store
from pipeline.config import resolution
from pipeline.orchestration.prefect_api import INTERVAL, POOL, WORKER, PrefectClient
from pipeline.tracking import views

ROOT = Path(__file__).resolve().parents[2]
"""The repository."""
LOGIN = "prefect/login.json"
"""File in the state root with the settings of Prefect's clients, while the server runs."""
PATIENCE = 120.0
"""Seconds that a server has to answer."""
GRACE = 100.0
"""Seconds that runs have to save the training's state and end."""
SERVER_GRACE = 10.0
"""Seconds that a server has to end."""
SHORT = 10.0
"""A service that ends within this many seconds of its start is not started again."""
WORKER_COMMAND = f"prefect worker start --pool {POOL} --type process --name {WORKER}".split()
DEPLOY_COMMAND = ["prefect", "--no-prompt", "deploy", "--all", "--prefect-file", "infra/prefect.yaml"]

ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # Otherwise a dozen processes start, for evaluating language models.
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "PREFECT_LOGGING_SERVER_LEVEL": "WARNING",
    "PREFECT_PLUGINS_ENABLED": "false",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # In memory, leases would be lost when the server restarts, and their slots would never be free again.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
}
"""Environment variables of all services."""


class Stopped(Exception):
    """The user requested the end."""


class Service:
    """A process that runs until `stop`, under a guard (pipeline/runs/guard.py) that ends it when this process dies."""

    def __init__(self, name: str, guard: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name, self.environment = name, environment
        self.command = [sys.executable, "-m", "pipeline.runs.guard", *guard]
        self.start()

    def start(self) -> None:
        """Start the process, the first time or again."""
        self.started = time.monotonic()
        # In a session of its own: this process decides what Ctrl-C ends, and in which order.
        self.process = subprocess.Popen(
            self.command, env=self.environment, stdin=subprocess.PIPE, start_new_session=True
        )

    def ended(self) -> str:
        """Return a clause about a process that ended, or an empty string while it lives."""
        status = self.process.poll()
        return "" if status is None else f"{self.name} ended with status {status}"

    def close(self) -> None:
        """Have the guard end the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()


class Services:
    """Services that start one after the other and end in reverse order, once the user requests it by a signal.

    A signal only sets a flag: an exception could interrupt the end of a service.
    """

    def __init__(self, environment: Mapping[str, str], prefect: PrefectClient) -> None:
        self.environment, self.prefect = environment, prefect
        self.running: list[Service] = []
        self.worker: Service | None = None
        self.stopped = self.hurried = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup ignores SIGHUP; a shell ignores SIGINT in background commands.
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._receive)

    def _receive(self, number: int, _: object) -> None:
        # A closing terminal may send SIGHUP twice; a second SIGINT comes from the user.
        self.hurried |= self.stopped and number == signal.SIGINT
        self.stopped = True

    def check(self) -> None:
        """Raise Stopped if the user requested the end."""
        if self.stopped:
            raise Stopped

    def start(self, name: str, number: signal.Signals, grace: float, command: Sequence[str]) -> Service:
        """Start a service that ends by the signal `number`; its descendants have `grace` seconds to end."""
        service = Service(name, [str(grace), str(int(number)), *command], self.environment)
        self.running.append(service)
        return service

    def start_worker(self) -> None:
        """Start the worker, which creates the work pool if necessary, and deploy the flows."""
        # On SIGTERM the worker kills its flows' processes. If it is killed itself, they get SIGTERM and can report.
        self.worker = self.start("the worker", signal.SIGKILL, GRACE, WORKER_COMMAND)
        self.wait_for(f"{self.prefect.url}/work_pools/{POOL}")
        command = [sys.executable, "-m", *DEPLOY_COMMAND]
        result = subprocess.run(
            command, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        self.check()
        if result.returncode != 0:
            raise InputError(f"`{' '.join(DEPLOY_COMMAND)}` failed: {(result.stdout + result.stderr).strip()}")

    def wait_for(self, url: str) -> None:
        """Wait until a server answers. Raises InputError after PATIENCE, or if a service has ended."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            self.check()
            for service in self.running:
                if service.ended():
                    raise InputError(f"{service.ended()}; see its output above")
            request = urllib.request.Request(url, headers=self.prefect.headers)  # noqa: S310 - http, to this machine
            with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=5):  # noqa: S310 - as above
                return
            time.sleep(0.1)
        raise InputError(f"{url} does not answer after {PATIENCE:.0f} s")

    def watch(self) -> NoReturn:
        """Restart services that end. Raises InputError if one ends soon after its start."""
        checked = time.monotonic()
        while True:
            self.check()
            for service in self.running:
                if ended := service.ended():
                    if time.monotonic() - service.started < SHORT:
                        raise InputError(f"{ended} soon after its start; see its output above")
                    print(f"{ended}; starting it again", flush=True)
                    if service is self.worker:
                        self.prefect.close_dead_runs(worker_is_dead=True)
                    service.close()
                    service.start()
            if self.worker is not None and time.monotonic() - checked > INTERVAL:
                self.prefect.close_dead_runs(worker_is_dead=False)
                checked = time.monotonic()
            time.sleep(0.2)

    def stop(self) -> None:
        """End the services, the worker first: its runs report to a server that still answers."""
        for service in reversed(self.running):
            service.close()
            while not service.ended() and not self.hurried:
                time.sleep(0.1)
            # The guard kills what is left.
            service.process.terminate()
            service.process.wait()
            if service is self.worker and not self.hurried:
                self.prefect.close_dead_runs(worker_is_dead=True)


def serve(*, worker: bool) -> None:
    """Run MLflow, Prefect's server and optionally a worker until SIGINT, SIGTERM or SIGHUP; print their addresses.

    Raises InputError if a port is not free, other services use the state root, or a service does not start.
    """
    root = state_root().absolute()
    (root / "prefect").mkdir(parents=True, exist_ok=True)
    ports = free_ports({"MLFLOW_PORT": 5000, "PREFECT_PORT": 4200})
    mlflow, prefect = (f"http://127.0.0.1:{port}" for port in ports.values())
    # Pages may be opened by either name of this machine.
    mlflow_origins, prefect_origins = (f"http://127.0.0.1:{port},http://localhost:{port}" for port in ports.values())
    login = f"wmt:{secrets.token_urlsafe(16)}"
    settings = {"PREFECT_API_URL": f"{prefect}/api", "PREFECT_API_AUTH_STRING": login}
    environment = {
        **os.environ,
        **settings,
        **ENVIRONMENT,
        "MLFLOW_TRACKING_URI": mlflow,
        "PREFECT_HOME": str(root / "prefect"),
        "PREFECT_SERVER_API_AUTH_STRING": login,
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": prefect_origins,
        "PWD": str(Path.cwd()),
        "WMT_STATE": str(root),
        **({"WMT_STATE_STORE": url} if (url := state_store()) else {}),
    }
    services = Services(environment, PrefectClient(settings["PREFECT_API_URL"], login))
    lock = FileLock(root / "prefect/services.lock", blocking=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise InputError(f"`make serve` or `make ui` runs already on {root}: end it first") from error
    # Only the user can read it.
    with writing(root / LOGIN) as temporary:
        temporary.touch(mode=0o600)
        temporary.write_text(json.dumps(settings) + "\n", encoding="utf-8")
    try:
        command = f"mlflow server --host 127.0.0.1 --port {ports['MLFLOW_PORT']} --workers 1"
        command += f" --uvicorn-opts=--log-level=warning --cors-allowed-origins {mlflow_origins}"
        command += f" --allowed-hosts {mlflow_origins.replace('http://', '')}"
        store = f"--backend-store-uri=sqlite:///{root}/mlflow.db", f"--default-artifact-root={root}/mlartifacts"
        services.start("MLflow", signal.SIGTERM, SERVER_GRACE, [*command.split(), *store])
        command = f"uvicorn --host 127.0.0.1 --port {ports['PREFECT_PORT']} --log-level warning --factory"
        command += " pipeline.orchestration.prefect_server:create_app"
        services.start("Prefect", signal.SIGTERM, SERVER_GRACE, command.split())
        services.wait_for(f"{prefect}/api/admin/version")
        services.wait_for(f"{mlflow}/health")
        if worker:
            services.prefect.close_dead_runs(worker_is_dead=True)
            services.start_worker()
        print(f"MLflow:  {runs_page(mlflow)}\nPrefect: {prefect}, password {login}", flush=True)
        if worker:
            print("a run: prefect deployment run wmt-en-de -p row=sample", flush=True)
        services.watch()
    except Stopped:
        pass
    finally:
        services.stop()
        (root / LOGIN).unlink(missing_ok=True)


def runs_page(server: str) -> str:
    """Return the address of the list of runs of the pair that params.yaml names, or of all experiments without one."""
    with contextlib.suppress(InputError, OSError):
        name = views.experiment_name(str(resolution.read_params().get("pair")))
        address = f"{server}/api/2.0/mlflow/experiments/get-by-name?{urlencode({'experiment_name': name})}"
        with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310 - http, to this machine
            return views.address(server, json.loads(answer.read())["experiment"]["experiment_id"])
    return f"{server}/#/experiments?workflowType=machine_learning"


def free_ports(defaults: Mapping[str, int]) -> dict[str, int]:
    """Return the port that each variable sets. Raises InputError for an invalid port or one that is not free."""
    ports: dict[str, int] = {}
    for variable, default in defaults.items():
        value = os.environ.get(variable) or str(default)
        if not value.isdecimal() or not 0 < int(value) < 65536:
            raise InputError(f"{variable} is {value!r}: it must be a port, from 1 to 65535")
        if int(value) in ports.values():
            raise InputError(f"{' and '.join([*ports, variable])} are both {value}: name two different ports")
        try:
            # Like the servers, it accepts a port whose last connections are about to time out.
            socket.create_server(("127.0.0.1", int(value))).close()
        except OSError as error:
            raise InputError(
                f"port {value} cannot be used ({os.strerror(error.errno or 0)}): end the program that listens there, "
                f"or set {variable} to a free port"
            ) from error
        ports[variable] = int(value)
    return ports


def login() -> dict[str, str]:
    """Return the settings of the server of `make serve`, found in the state root or in the repository's work/.

    Empty if no server answers.
    """
    for path in (state_root() / LOGIN, ROOT / "work" / LOGIN):
        try:
            settings: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
            address = urlsplit(settings["PREFECT_API_URL"])
            # The file of a killed server is still there.
            socket.create_connection((str(address.hostname), address.port or 80), timeout=5).close()
        except OSError:
            continue
        return settings
    return {}


def connect() -> None:
    """Set the environment of Prefect's client to the server of `make serve`, unless PREFECT_API_URL names another.

    Raises InputError if there is neither. To be called before Prefect is imported.
    """
    settings = login()
    if os.environ.get("PREFECT_API_URL") not in {None, settings.get("PREFECT_API_URL")}:
        return
    if not settings:
        raise InputError(f"no Prefect server answers: run `make serve` in {ROOT} first, or set PREFECT_API_URL")
    os.environ.update(settings)
