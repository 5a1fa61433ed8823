"""The commands of `wmt` that start servers on this machine: ui, serve."""

from __future__ import annotations

import typer

from pipeline.cli.repository import check_folder

app = typer.Typer()
SERVE = "Do what `wmt ui` does, with a worker that runs Prefect's deployments. A second Ctrl-C ends it at once."


@app.command("serve", rich_help_panel="Services", help=f"{SERVE}\n\n\b\nExample:\n  wmt serve")
@app.command(rich_help_panel="Services")
def ui(context: typer.Context) -> None:
    """Start MLflow and Prefect's server on this machine's loopback, for one person. Ctrl-C ends both.

    $MLFLOW_PORT and $PREFECT_PORT set other ports than 5000 and 4200. Both ask for one password, a new one at each
    start; Prefect's commands in this environment read it from a file.

    \b
    Example:
      wmt ui
    """
    check_folder()
    from pipeline.flows import services

    services.serve(worker=context.info_name == "serve")
