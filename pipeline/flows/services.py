"""MLflow, Prefect's server and a worker on this machine's loopback interface, for one person: `wmt ui`, `wmt serve`."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from filelock import FileLock, Timeout

from nmt.common.files import write_json
from nmt.common.processes import end, start
from nmt.errors import InputError
from pipeline.config import resolution
from pipeline.config.paths import state_root
from pipeline.flows import worker as flows_worker
from pipeline.tracking.server import link, local_uri, uri

ROOT = Path(__file__).resolve().parents[2]  # the repository
USER = "wmt"  # the user's name for MLflow, and in Prefect's password
STORE = "MLFLOW_TRACKING_"  # how the variables begin that name a store of MLflow's and the login there
LOGIN = "prefect/login.json"  # file in the state root with the settings of Prefect's clients, while the server runs
PATIENCE = 300.0  # Seconds that a server has to answer. Beside other programs a first start has taken more than 120.
GRACE = flows_worker.GRACE + 10  # seconds between SIGTERM and SIGKILL: more than the worker gives its flows
ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # Otherwise a dozen processes start, for evaluating language models.
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    # By default also 10.* and 192.168.*, which fit names such as 10.example.org, too.
    "MLFLOW_SERVER_ALLOWED_HOSTS": "127.0.0.1:*,localhost:*",
    "PREFECT_LOGGING_SERVER_LEVEL": "WARNING",
    "PREFECT_PLUGINS_ENABLED": "false",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # Its pages of version 2 send usage to api2.amplitude.com, whatever the setting above says.
    "PREFECT_SERVER_UI_V2_ENABLED": "false",
    # In memory, leases would be lost when the server restarts, and their slots would never be free again.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
}
"""Environment variables of all services."""


def _stop(*_: object) -> None:
    """Request the end, which no later signal interrupts but a second SIGINT: a closing terminal may send SIGHUP twice.

    The second SIGINT ends this process at once. The kernel tells the services, and the worker then kills its flows.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise KeyboardInterrupt


class Services:
    """MLflow and Prefect, and perhaps a worker, on the state root."""

    def __init__(self, root: Path) -> None:
        self.ports = free_port("MLFLOW_PORT", 5000), free_port("PREFECT_PORT", 4200)
        if self.ports[0] == self.ports[1]:
            raise InputError(f"MLFLOW_PORT and PREFECT_PORT are both {self.ports[0]}: set one of them to another port")
        self.mlflow, self.prefect = (f"http://127.0.0.1:{port}" for port in self.ports)
        # Pages may be opened by either name of this machine.
        mlflow_pages, prefect_pages = (f"http://127.0.0.1:{port},http://localhost:{port}" for port in self.ports)
        self.password = secrets.token_urlsafe(16)
        credentials = f"{USER}:{self.password}"
        # A proxy would be asked for 127.0.0.1, too, and be told the password.
        direct = ",".join(filter(None, (urllib.request.getproxies().get("no"), "127.0.0.1,localhost")))
        self.login = {"PREFECT_API_URL": f"{self.prefect}/api", "PREFECT_API_AUTH_STRING": credentials}
        self.login |= {"NO_PROXY": direct, "no_proxy": direct}
        self.environment = {
            **os.environ,
            **self.login,
            **ENVIRONMENT,
            "MLFLOW_TRACKING_URI": self.mlflow,
            "MLFLOW_TRACKING_USERNAME": USER,
            "MLFLOW_TRACKING_PASSWORD": self.password,
            "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": mlflow_pages,
            "PREFECT_HOME": str(root / "prefect"),
            "PREFECT_SERVER_API_AUTH_STRING": credentials,
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": prefect_pages,
            "PWD": str(Path.cwd()),
        }
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str) -> None:
        """Start a service; it does not see Ctrl-C, because this process decides what ends in which order."""
        self.running[name] = start((sys.executable, "-m", *command), env=self.environment, stdin=subprocess.DEVNULL)

    def start_servers(self) -> None:
        apps = {"MLflow": "pipeline.tracking.server:mlflow_app", "Prefect": "prefect.server.api.server:create_app"}
        for port, (name, app) in zip(self.ports, apps.items(), strict=True):
            options = f"--host 127.0.0.1 --port {port} --log-level warning --timeout-graceful-shutdown 5 --factory"
            self.start(name, "uvicorn", *options.split(), app)
        self.wait_for(f"{self.prefect}/api/admin/version")
        self.wait_for(f"{self.mlflow}/health")

    def start_worker(self) -> None:
        if uri() != local_uri():
            # Its runs are tracked where the user's others are.
            others = {name: value for name, value in self.environment.items() if not name.startswith(STORE)}
            self.environment = others | {name: os.environ[name] for name in os.environ if name.startswith(STORE)}
        program = (sys.executable, "-m", "prefect")
        worker = (*program, "worker", "start", "--pool", "wmt", "--type", "process")
        self.start("the worker", flows_worker.__name__, *worker)
        self.wait_for(f"{self.prefect}/api/work_pools/wmt")
        command = (*program, "--no-prompt", "deploy", "--all", "--prefect-file", "infra/prefect.yaml")
        deployed = subprocess.run(
            command, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if deployed.returncode != 0:
            raise InputError(f"deploying the flows failed: {(deployed.stdout + deployed.stderr).strip()}")

    def check(self) -> None:
        """Raise InputError if a service has ended."""
        for name, process in self.running.items():
            if (status := process.poll()) is not None:
                raise InputError(f"{name} ended with status {status}: its output is above, and all others end too")

    def wait_for(self, url: str) -> None:
        """Wait until a server answers. Raises InputError after PATIENCE, or if a service has ended."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            self.check()
            with suppress(httpx.TransportError):
                # No proxy of the environment, and no reading of certificates, which takes longer than the answer.
                login = USER, self.password
                answer = httpx.get(url, auth=login, timeout=5, trust_env=False, verify=False)  # noqa: S501 - it is HTTP
                if answer.is_success:
                    return
            time.sleep(0.1)
        raise InputError(f"{url} does not answer after {PATIENCE:.0f} s")

    def end(self) -> None:
        """End all. The worker first: its runs report to a server that still answers."""
        for process in reversed(self.running.values()):
            end(process, GRACE)


def serve(*, worker: bool) -> None:
    """Run MLflow, Prefect's server and optionally a worker until SIGINT, SIGTERM or SIGHUP; print their addresses.

    Raises InputError if a port is not free, other services use the state root, or a service does not start or dies.
    """
    root = state_root().absolute()
    local_uri()  # Prefect's database is beside MLflow's.
    (root / "prefect").mkdir(parents=True, exist_ok=True)
    (root / "prefect").chmod(0o700)  # prefect.db has the parameters and the logs of runs, LOGIN the password.
    lock = FileLock(root / "prefect/services.lock", blocking=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise InputError(f"`make serve` or `make ui` runs already on {root}: end it first") from error
    services = Services(root)
    write_json(root / LOGIN, services.login)
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup ignores SIGHUP; a shell ignores SIGINT in background commands.
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, _stop)
        services.start_servers()
        print(f"MLflow:  {services.mlflow}, user {USER}, password {services.password}", flush=True)
        print(f"Prefect: {services.prefect}, password {USER}:{services.password}", flush=True)
        with suppress(InputError):  # params.yaml has a mistake.
            pair = resolution.read_params().get("pair", "en-de")
            here = f"{services.mlflow}/wmt-{pair}"
            runs = f"{here}, their curves {here}?charts" if uri() == local_uri() else link(pair)
            print(f"runs:    {runs}", flush=True)
        if worker:
            services.start_worker()
            print("a run: prefect deployment run wmt-en-de -p row=sample", flush=True)
        while True:
            services.check()
            time.sleep(0.5)
    except KeyboardInterrupt:
        pass
    finally:
        services.end()
        (root / LOGIN).unlink(missing_ok=True)


def free_port(variable: str, default: int) -> str:
    """Return the port that an environment variable sets; raises InputError if no server can listen there."""
    port = os.environ.get(variable) or str(default)
    try:
        # Like the servers, it accepts a port whose last connections are about to time out. Without zeros, 0 is no
        # number: the system would choose a port that nobody knows.
        socket.create_server(("127.0.0.1", int(port.lstrip("0")))).close()
    except (OSError, OverflowError, ValueError) as error:
        raise InputError(
            f"{variable} is {port}, which is no free port: end the program that listens there, or set {variable} to "
            "another one"
        ) from error
    return port


def login() -> dict[str, str]:
    """Return the login of `make serve`, from the state root or the repository's work/; empty if no server answers."""
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
