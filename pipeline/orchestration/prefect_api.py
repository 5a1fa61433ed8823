"""What `make serve` asks of Prefect's server: above all to close runs whose process died without a report."""

from __future__ import annotations

import base64
import json
import time
import urllib.request
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import psutil

POOL = "wmt"
WORKER = "make-serve"
"""The worker's name in Prefect."""
UNFINISHED = ("PENDING", "RUNNING", "CANCELLING")
"""Types of states in which a worker leaves the runs that it cannot end."""
SETTLE = 60.0
"""Seconds between two searches for runs whose process is gone; and how long such a run has to report it itself."""


class Prefect:
    """The server's API."""

    def __init__(self, url: str, login: str) -> None:
        self.url = url
        self.headers = {
            "Content-Type": "application/json", "Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"
        }  # fmt: skip

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The answer. Raises OSError."""
        request = urllib.request.Request(f"{self.url}/{path}", json.dumps(body).encode(), self.headers)  # noqa: S310
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - it is http: we made it
            return json.loads(answer.read())

    def settle(self, worker_is_dead: bool) -> None:
        """Report runs as crashed, or cancelled, that stand as running although their process is gone."""
        workers = self.post(f"work_pools/{POOL}/workers/filter", {})
        if any(worker["name"] != WORKER and worker["status"] == "ONLINE" for worker in workers):
            # Its processes may be on another machine.
            return
        runs = {"state": {"type": {"any_": UNFINISHED}}}
        pool = {"name": {"any_": [POOL]}}
        for run in self.post("flow_runs/filter", {"flow_runs": runs, "work_pools": pool}):
            if not is_dead(run, worker_is_dead):
                continue
            kind = "CANCELLED" if run["state_type"] == "CANCELLING" else "CRASHED"
            message = "Its process ended without a report. Run it again: training resumes from its last checkpoint."
            state = {"type": kind, "name": kind.capitalize(), "message": message}
            self.post(f"flow_runs/{run['id']}/set_state", {"state": state, "force": True})


def is_dead(run: Mapping[str, Any], worker_is_dead: bool) -> bool:
    """Whether the process of a run of our worker is gone.

    While the worker lives, a run that has just begun may still carry the number of an earlier process, or none.
    """
    since = datetime.fromisoformat(run["state"]["timestamp"]).timestamp()
    if not worker_is_dead and time.time() - since < SETTLE:
        return False
    number = run["infrastructure_pid"]
    if number is None:
        return worker_is_dead
    try:
        environment = psutil.Process(int(number)).environ()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        # Another process may have the number now, and be another user's.
        return True
    return bool(environment.get("PREFECT__FLOW_RUN_ID") != run["id"])
