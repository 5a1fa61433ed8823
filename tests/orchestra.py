"""Prefect's server, a worker and MLflow on loopback, for a temporary clone: free ports, homes of their own."""

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
from agents import PATIENCE, is_over, until
from clones import Clone
from ports import free_port

from pipeline.flows import services

Json = dict[str, Any]
PAGE = 200  # most lines in an answer of Prefect's API


class Orchestra:
    """`make serve` in a clone."""

    def __init__(self, clone: Clone, home: Path) -> None:
        self.clone, self.home = clone, home
        self.prefect, self.mlflow = free_port(), free_port()
        self.api_url = f"http://127.0.0.1:{self.prefect}/api"
        self.log = home / "services.log"
        self.gpus = home / "bin/gpus.txt"
        """What `nvidia-smi` lists; it fails, as where there is none, without this file."""
        self.gpus.parent.mkdir(parents=True)
        command = self.gpus.with_name("nvidia-smi")
        command.write_text('#!/bin/sh\nexec cat "$(dirname "$0")/gpus.txt" 2>/dev/null\n')
        command.chmod(0o755)

    def environment(self) -> dict[str, str]:
        """The user's, in another terminal."""
        variables = self.clone.environment()
        return {
            **variables,
            "PATH": f"{self.gpus.parent}{os.pathsep}{variables['PATH']}",
            # The console script `prefect` finds the clone's modules, whichever are installed.
            "PYTHONPATH": os.pathsep.join([str(self.clone.folder), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PREFECT_HOME": str(self.home / "prefect"),
            "PREFECT_WORKER_QUERY_SECONDS": "2",
            "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "5",
            "OMP_NUM_THREADS": "1",
            # Nothing here may be asked by way of a proxy: this one does not answer.
            "HTTP_PROXY": "http://127.0.0.1:9",
            "NO_PROXY": "",
            "CUDA_VISIBLE_DEVICES": "GPU-4f2a",  # of the stand-in alone: real GPUs stay hidden
        }

    def start(self) -> subprocess.Popen[bytes]:
        """The services, once they are ready."""
        before = self.log.stat().st_size if self.log.exists() else 0
        command = [sys.executable, "-m", "pipeline.cli", "serve"]
        variables = {**self.environment(), "PREFECT_PORT": str(self.prefect), "MLFLOW_PORT": str(self.mlflow)}
        with self.log.open("ab") as log:
            self.process = process = subprocess.Popen(
                command, cwd=self.clone.folder, env=variables, stdout=log, stderr=log, start_new_session=True
            )
        try:
            until(
                lambda: process.poll() is not None or b"a run: " in self.log.read_bytes()[before:],
                "the services",
                2 * services.PATIENCE,
            )
            assert process.poll() is None, self.log.read_text()
        except BaseException:
            self.kill(process)
            raise
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """End the services and all that works in the clone."""
        process.kill()
        process.wait()
        while remaining := self.at_work():
            for one in remaining:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)

    def ends(self, process: subprocess.Popen[bytes], end: Callable[[], object]) -> int:
        """The exit status of the services after `end`, which must leave nothing behind."""
        family = [process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))]
        end()
        status = process.wait(timeout=PATIENCE)
        until(lambda: not any(map(psutil.pid_exists, family)), "the end of what the services started", 120)
        until(lambda: not self.at_work(), "the end of what works in the clone", 120)
        return status

    @contextmanager
    def serving(self) -> Iterator[subprocess.Popen[bytes]]:
        """The services until the end, when Ctrl-C must leave nothing behind."""
        process = self.start()
        try:
            yield process
            assert self.ends(process, lambda: process.send_signal(signal.SIGINT)) == 0
        finally:
            self.kill(process)

    def at_work(self, *words: str) -> list[int]:
        """The processes of this clone: those whose command or working folder is in it, all `words` in the command."""
        running = []
        for process in psutil.process_iter():
            try:
                command = " ".join(process.cmdline())
                here = process.cwd()
            except (psutil.Error, FileNotFoundError):  # It ended while psutil read of it.
                continue
            mine = str(self.clone.folder) in command or here.startswith(str(self.clone.folder))
            if mine and not is_over(process) and all(word in command for word in words):
                running.append(process.pid)
        return running

    def login(self) -> Json:
        """The settings of Prefect's clients, as the services publish them."""
        return json.loads((self.clone.folder / "work/prefect/login.json").read_text())

    def authorization(self) -> str:
        return f"Basic {base64.b64encode(self.login()['PREFECT_API_AUTH_STRING'].encode()).decode()}"

    def call(self, path: str, body: Json | None = None) -> Any:
        """Prefect's API: GET, or POST where there is a body."""
        method, headers = "GET" if body is None else "POST", {"Authorization": self.authorization()}

        def answer() -> httpx.Response | None:
            # Without TLS; to read the certificates of authorities takes longer than the answer.
            url = f"{self.api_url}/{path}"
            reply = httpx.request(method, url, json=body, headers=headers, timeout=60, verify=False)
            # The database is locked; Prefect's own client asks again, too.
            return None if reply.status_code == 503 else reply

        return until(answer, f"an answer to {path}").raise_for_status().json()

    def deploy(self, name: str | None = None, pair: str = "en-de", **parameters: Any) -> str:
        """What `prefect deployment run` does, without the seconds that its start takes; returns the flow run's id."""
        flow = {"en-tree": "parse-en"}.get(pair, f"wmt-{pair}")
        deployment = self.call(f"deployments/name/{flow}/{flow}")["id"]
        body = {"state": {"type": "SCHEDULED"}, "parameters": parameters, **({"name": name} if name else {})}
        return str(self.call(f"deployments/{deployment}/create_flow_run", body)["id"])

    def run(self, identity: str) -> Json:
        return self.call(f"flow_runs/{identity}")

    def ended(self, identity: str, patience: float = PATIENCE) -> Json:
        def over() -> Json | None:
            with contextlib.suppress(httpx.HTTPError):
                run = self.run(identity)
                return run if run["state_type"] in {"COMPLETED", "FAILED", "CANCELLED", "CRASHED"} else None

        return until(over, f"the end of {identity}; {self.log.read_text()[-3000:]}", patience)

    def stages(self, identity: str) -> dict[str, Json]:
        """The task runs of a flow run in the order in which they began."""
        body = {"flow_runs": {"id": {"any_": [identity]}}, "sort": "EXPECTED_START_TIME_ASC"}
        runs = sorted(self.call("task_runs/filter", body), key=lambda run: str(run["start_time"]))
        return {run["name"]: run for run in runs}

    def how(self, identity: str) -> dict[str, str]:
        return {name: run["state_name"] for name, run in self.stages(identity).items()}

    def lines(self, identity: str) -> list[Json]:
        logged: list[Json] = []
        while True:
            logs = {"flow_run_id": {"any_": [identity]}}
            body = {"logs": logs, "sort": "TIMESTAMP_ASC", "offset": len(logged), "limit": PAGE}
            logged += (page := self.call("logs/filter", body))
            if len(page) < PAGE:
                return logged

    def messages(self, identity: str) -> str:
        return "\n".join(line["message"] for line in self.lines(identity))

    def artifacts(self, identity: str) -> dict[str, Json]:
        """Key -> artifact of a flow run and its tasks."""
        listed = self.call("artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [identity]}}})
        return {artifact["key"]: artifact for artifact in listed}

    def worker(self) -> int:
        """The process of Prefect's worker, below that which ends it (pipeline/flows/worker.py)."""
        pids = self.at_work("-m prefect worker start")
        (worker_pid,) = (pid for pid in pids if "flows.worker" not in psutil.Process(pid).cmdline()[2])
        return worker_pid

    def cancel(self, identity: str) -> None:
        """What the button in Prefect's pages does."""
        self.call(f"flow_runs/{identity}/set_state", {"state": {"type": "CANCELLING"}})

    def trained(self, updates: int) -> Path | None:
        """The folder of a training that has come to that many updates."""
        for history in (self.clone.folder / "work/train").glob("*/history.jsonl"):
            lines = history.read_bytes().split(b"\n")[:-1]
            if lines and json.loads(lines[-1])["update"] >= updates:
                return history.parent
        return None
