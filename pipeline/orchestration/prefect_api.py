"""Requests of `make serve` to Prefect's server: close runs whose process ended without a report."""

from __future__ import annotations

import base64
import json
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

import psutil

POOL = "wmt"
WORKER = "make-serve"
"""The worker's name in Prefect."""
UNFINISHED = ("PENDING", "RUNNING", "CANCELLING")
"""Types of the states of runs that a worker has started."""
MESSAGE = "Its process ended without a report. Run it again: training resumes from its last saved state."
INTERVAL = 60.0
"""Seconds between two calls of `close_dead_runs`; also the time that a new run has to report its process."""


class PrefectClient:
    """The server's API."""

    def __init__(self, url: str, login: str) -> None:
        self.url = url
        authorization = f"Basic {base64.b64encode(login.encode()).decode()}"
        self.headers = {"Content-Type": "application/json", "Authorization": authorization}

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the server's answer. Raises OSError."""
        request = urllib.request.Request(f"{self.url}/{path}", json.dumps(body).encode(), self.headers)  # noqa: S310 - as below
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - http, to this machine
            return json.loads(answer.read())

    def close_dead_runs(self, worker_is_dead: bool) -> None:
        """Set unfinished runs whose process is gone to crashed or cancelled, unless the server does not answer."""
        unfinished, pool = {"state": {"type": {"any_": UNFINISHED}}}, {"name": {"any_": [POOL]}}
        with suppress(OSError):
            workers = self.post(f"work_pools/{POOL}/workers/filter", {})
            if any(worker["name"] != WORKER and worker["status"] == "ONLINE" for worker in workers):
                # A run's process may be on another machine.
                return
            for run in self.post("flow_runs/filter", {"flow_runs": unfinished, "work_pools": pool}):
                if is_dead(run, worker_is_dead):
                    result = "CANCELLED" if run["state_type"] == "CANCELLING" else "CRASHED"
                    state = {"type": result, "name": result.capitalize(), "message": MESSAGE}
                    self.post(f"flow_runs/{run['id']}/set_state", {"state": state, "force": True})


def is_dead(run: Mapping[str, Any], worker_is_dead: bool) -> bool:
    """Return whether the process of a run of our worker is gone.

    While the worker lives, a run in a new state may have no process yet, or the server has that of an earlier attempt.
    """
    since = datetime.fromisoformat(run["state"]["timestamp"]).timestamp()
    if not worker_is_dead and time.time() - since < INTERVAL:
        return False
    pid = run["infrastructure_pid"]
    if pid is None:
        return worker_is_dead
    try:
        environment = psutil.Process(int(pid)).environ()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        # Denied: another user's process has the id now.
        return True
    return bool(environment.get("PREFECT__FLOW_RUN_ID") != run["id"])
