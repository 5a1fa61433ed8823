"""`wmt verify`: check a run. The logic is in pipeline/verify."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.repository import check_folder

app = typer.Typer()


@app.command(rich_help_panel="Runs")
def verify(
    updates: Annotated[
        list[str] | None,
        typer.Option(metavar="A:B", help="Train these updates again, not random ones; may be repeated."),
    ] = None,
    share: Annotated[float, typer.Option(help="Share of the updates that is trained again.")] = 0.01,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A certificate; by default results/certificate.json.")
    ] = None,
) -> None:
    """Check the run in this folder, or a certificate, by running the pipeline again.

    Every stage up to the score, but training, runs again in a scratch folder. What it makes, and what is here, must
    have the hashes of the certificate. Of the training, parts are trained again from kept states, up to the next hash
    of its chain, and compared to the bit. Every step is recomputed, equal (only its hash is compared), differs or
    inconclusive (nothing to compare with). The exit status is 1 where a step differs, 2 where one is inconclusive, 0 if
    all is verified.

    \b
    Example:
      wmt verify
      wmt verify --updates 420:440 --updates 0:20
      wmt verify --certificate theirs.json
    """
    check_folder()
    from pipeline.config.paths import CERTIFICATE
    from pipeline.verify import check

    found = []
    for finding in check.findings(certificate or CERTIFICATE, updates or (), share):
        print(finding, flush=True)
        found.append(finding)
    sentence, status = check.verdict(found)
    print(sentence)
    raise typer.Exit(status)
