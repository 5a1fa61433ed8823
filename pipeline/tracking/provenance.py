"""What the report says of the run that makes it, from the run's record: the time of the stages, and links."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import takewhile

from pipeline.config import graph
from pipeline.reporting.provenance import Provenance
from pipeline.runs import evidence
from pipeline.runs.record import Record, current_record, numbered_records
from pipeline.runs.stage_tracker import FAILURES
from pipeline.tracking import views

_REMOTE = re.compile(r"(?:(?:https?|ssh|git)://)?(?:[^@/]+@)?(\w[\w-]*(?:\.[\w-]+)+)(?::\d+)?[:/](.+?)(?:\.git)?/?")
"""Host and path of a git remote, without its user."""


def of_present_run() -> Provenance:
    """Return the time of the stages before the last one, and links; nothing where there is no record."""
    try:
        record = current_record()
        if record is None or not (record.folder / "run.json").exists():
            return Provenance()
        return Provenance(tuple(_times(record)), tuple(_links(record)))
    except FAILURES:
        return Provenance()


def _seconds(record: Record) -> dict[str, float]:
    """Return the seconds of the stages that a run finished."""
    return {name: stage["seconds"] for name, stage in record.stages().items() if stage["status"] == "finished"}


def _times(record: Record) -> Iterator[tuple[str, float | None, bool]]:
    """Yield each stage before the last one, its seconds, and whether it ran in this run or in an earlier one."""
    now, before = _seconds(record), dict[str, float]()
    for earlier in takewhile(lambda each: each.folder.exists(), numbered_records()):
        before |= _seconds(earlier)
    for name in graph.stages():
        if name != graph.last_stage():
            yield name, now.get(name, before.get(name)), name in now


def _links(record: Record) -> Iterator[tuple[str, str, str]]:
    code = evidence.code()
    yield "commit", code["commit"][:12], commit_address(evidence.remote(), code["commit"])
    yield "run", record.folder.name, ""
    trained = record.stages().get(graph.training_stage() or "", {}).get("evidence", {}).get("tags", {})
    if "hardware.cpu" in trained:
        gpus = trained.get("hardware.gpus", "none")
        yield "trained on", f"{trained['hardware.cores']} cores of {trained['hardware.cpu']}; GPUs: {gpus}", ""
    tags, published = record.description()["tags"], record.published()
    if "DVC_EXP_NAME" in tags:
        yield "DVC experiment", tags["DVC_EXP_NAME"], ""
    if "run" in published:
        yield "MLflow run", published["run"], mlflow_address(published)
    if flow := tags.get("prefect.flow_run_id"):
        server = os.environ.get("PREFECT_API_URL", f"http://127.0.0.1:{os.environ.get('PREFECT_PORT', '4200')}/api")
        # An address with a password belongs in no page.
        pages = "" if "@" in server else f"{server.removesuffix('/').removesuffix('/api')}/runs/flow-run/{flow}"
        yield "Prefect run", flow, pages


def commit_address(remote: str, commit: str) -> str:
    """Return the page of a commit on the forge of a git remote; an empty string where the remote is no such address."""
    found = _REMOTE.fullmatch(remote)
    known = re.fullmatch("[0-9a-f]{40,}", commit)
    return f"https://{found[1]}/{found[2]}/commit/{commit}" if found and known else ""


def mlflow_address(published: dict[str, str]) -> str:
    """Return the page of the MLflow run: on its server, or for a local database where `make ui` has it."""
    server = published.get("uri", "")
    if not server.startswith("http"):
        server = f"http://127.0.0.1:{os.environ.get('MLFLOW_PORT', '5000')}"
    if "@" in server or "experiment" not in published:  # An address with a masked password leads nowhere.
        return ""
    return views.run_address({**published, "uri": server})
