"""What the report says of the run that makes it: the time of the stages, its commit and its names."""

from __future__ import annotations

import os

from nmt.config import InputError
from pipeline.config import graph
from pipeline.config.paths import read_json, status_file
from pipeline.tracking import source


def of_present_run() -> tuple[dict[str, float | None], list[str]]:
    """Return the time of the stages before the last one, where they ran in this folder, and what names the run."""
    seconds = {name: _seconds(name) for name in graph.stages() if name != graph.last_stage()}
    names = {
        "commit": source.code()["commit"][:12],
        "DVC experiment": os.environ.get("DVC_EXP_NAME"),
        "Prefect run": os.environ.get("PREFECT__FLOW_RUN_ID"),
    }
    return seconds, [f"{what} {name}" for what, name in names.items() if name]


def _seconds(stage: str) -> float | None:
    try:
        status = read_json(status_file(stage))
    except InputError:  # It never ran here.
        return None
    return float(status["seconds"]) if status.get("state") == "done" and "seconds" in status else None
