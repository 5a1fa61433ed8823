"""The commands of `wmt` that start servers on this machine: ui, serve."""

from __future__ import annotations

import typer

from pipeline.cli.repository import check_folder

app = typer.Typer()


@app.command(rich_help_panel="Services")
def ui() -> None:
    """Start MLflow and Prefect's server on this machine's loopback, for one person. Ctrl-C ends both.

    $MLFLOW_PORT and $PREFECT_PORT set other ports than 5000 and 4200. Both ask for one password, a new one at each
    start; Prefect's commands in this environment read it from a file.

    \b
    Example:
      wmt ui
    """
    check_folder()
    from pipeline.flows import services

    services.serve(worker=False)


@app.command(rich_help_panel="Services")
def serve() -> None:
    """Start MLflow, Prefect's server and a worker that runs Prefect's deployments. Ctrl-C ends all.

    This is `wmt ui` with a worker. A second Ctrl-C does not wait for states to be saved.

    \b
    Example:
      wmt serve
    """
    check_folder()
    from pipeline.flows import services

    services.serve(worker=True)
