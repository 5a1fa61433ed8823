"""The commands that start servers on this machine, or set them up."""

from __future__ import annotations

from typing import Annotated

import typer


def ui() -> None:
    """Start MLflow and Prefect's server on this machine's loopback, for one person. Ctrl-C ends both.

    $MLFLOW_PORT and $PREFECT_PORT set other ports than 5000 and 4200. Prefect asks for a password, a new one at each
    start; commands in this environment read it from a file.

    \b
    Example:
      wmt ui
    """
    from pipeline.orchestration import services

    services.serve(worker=False)


def serve() -> None:
    """Start MLflow, Prefect's server and a worker that runs Prefect's deployments. Ctrl-C ends all.

    This is `wmt ui` with a worker. A second Ctrl-C does not wait for states to be saved.

    \b
    Example:
      wmt serve
    """
    from pipeline.orchestration import services

    services.serve(worker=True)


def notify(
    url: Annotated[str, typer.Argument(metavar="URL", help='Gets `{"text": ...}` by POST; Slack and Mattermost do.')],
) -> None:
    """Post the name, state and message of every Prefect run that fails to a webhook.

    This makes the block and the automation `wmt-failures` in Prefect's server, or changes their address. Prefect's
    pages change them to e-mail or another service, and switch them off.

    \b
    Example:
      wmt notify https://hooks.slack.com/services/T000/B000/XXXX
    """
    from pipeline.orchestration import services

    services.connect()
    from pipeline.orchestration import notifications

    notifications.notify(url)
    print("Prefect posts the name, state and message of every run that fails to this address.")
