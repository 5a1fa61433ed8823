"""Files of runs, fetched from MLflow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nmt.config import InputError
from pipeline.tracking import server


def fetch(name: str, files: Sequence[str], folder: Path) -> tuple[str, list[Path]]:
    """Fetch artifacts of the run that `name` names into `folder`; return the run's full name, and where they are.

    A file that the run does not have is not there. Raises InputError where no run or several have this name or an id
    that begins with it, and where MLflow cannot be reached.
    """
    folder.mkdir(parents=True)
    with server.session() as client:
        runs = {f"{run.info.run_name}-{run.info.run_id[:8]}": run.info for run in server.runs(client)}
        fitting = [
            full for full, run in runs.items() if name in {full, run.run_name} or (name and run.run_id.startswith(name))
        ]
        if len(fitting) != 1:
            which = f" ({', '.join(fitting)})" if fitting else ""
            raise InputError(f"{name!r} names {len(fitting)} runs{which}: MLflow's page lists names and ids")
        run_id = runs[fitting[0]].run_id
        for file in {file.path for file in client.list_artifacts(run_id)}.intersection(files):
            client.download_artifacts(run_id, file, str(folder))
    return fitting[0], [folder / file for file in files]
