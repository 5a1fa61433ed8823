"""List the records of runs, and publish them to MLflow; `wmt runs`, `wmt publish`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import datetime

from nmt.config import InputError
from pipeline.common.paths import CONFIG, SCORES
from pipeline.config import graph
from pipeline.config.scorer import scorer
from pipeline.runs.credentials import masked
from pipeline.runs.record import Record, numbered_records, records, runs_folder
from pipeline.tracking.publish import Server, quiet

HEADER = ("run", "name", "row", "corpus", "seed", "started", "status", "score", "MLflow")


def listing() -> str:
    """Return a table of all records, oldest first: what ran, how it ended, its score, whether MLflow has all of it.

    Damaged records are left out, with a line on standard error.
    """
    lines: list[tuple[str, ...]] = [HEADER]
    for record in records(runs_folder()):
        try:
            lines.append(_line(record))
        except InputError as error:
            print(f"runs: {error}", file=sys.stderr)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _line(record: Record) -> tuple[str, ...]:
    described = record.description()
    state = "yes" if record.is_published() else "in part" if record.published() else "no"
    scores = record.scores()
    by = scorer(scores)
    score = f"{by.title} {scores[by.key]:.1f}" if scores else "-"
    started = f"{datetime.fromtimestamp(described['created'] / 1000):%Y-%m-%d %H:%M}"
    facts = (str(described.get(key, "-")) for key in ("name", "row", "corpus", "seed"))
    return (record.folder.name, *facts, started, record.status().lower(), score, state)


def publish(names: Sequence[str], everything: bool) -> Iterator[str]:
    """Publish runs to MLflow, yielding a line for each: those named (a beginning is enough), all, or those that wait.

    A finished run that DVC restored whole, without running a stage, has no record: without names it gets one here.
    Damaged records are left out, with a line on standard error. Raises InputError if a name fits no run, or several, or
    a damaged one, or if MLflow cannot be reached.
    """
    if not names:
        restored_run()
    found = records(runs_folder())
    server = Server(runs_folder().parent)
    with quiet():
        for record in [named(name, found) for name in names] or found:
            try:
                if not (names or everything) and record.is_published(server.address):
                    continue
                changed = server.publish(record)
            except InputError as error:
                if names:
                    raise
                print(f"publish: {error}", file=sys.stderr)
                continue
            except Exception as error:
                problem = masked(str(error).strip().split("\n")[0])
                raise InputError(f"MLflow at {server.address}: {problem}") from error
            yield f"{record.folder.name}: {'published' if changed else 'up to date'}"


def named(name: str, found: Sequence[Record]) -> Record:
    """Return the record whose id is `name` or begins so; raise InputError where none or several do."""
    fitting = [record for record in found if record.folder.name == name]
    fitting = fitting or [record for record in found if name and record.folder.name.startswith(name)]
    if len(fitting) != 1:
        raise InputError(f"{name!r} names {len(fitting)} runs: `wmt runs` lists them")
    return fitting[0]


def restored_run() -> Record | None:
    """Return the record of the run whose results are in this repository, made or completed where DVC is up to date."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    if not CONFIG.exists() or not SCORES.exists():
        return None
    try:
        with Repo() as repo:
            if repo.status():
                return None
    except DvcException:  # No repository of DVC, or one at work.
        return None
    for record in numbered_records():
        record.create(CONFIG)
        scores = record.results / SCORES.name
        if not record.is_complete():
            record.finish(list(graph.stages()))
            return record
        if scores.exists() and scores.read_bytes() == SCORES.read_bytes():
            return record
    return None
