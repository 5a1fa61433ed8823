"""`wmt verify` and `wmt fork`: check a run, and train on from its middle. The logic is in pipeline/verification."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def verify(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="A run of `wmt runs`; without it, the results in this folder.")
    ] = None,
    updates: Annotated[
        list[str] | None, typer.Option(metavar="A:B...", help="Train these updates again, in place of random ones.")
    ] = None,
    share: Annotated[float, typer.Option(help="Share of the updates that is trained again.")] = 0.01,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A certificate; by default results/certificate.json of the run.")
    ] = None,
    translate: Annotated[bool, typer.Option(help="Translate again.")] = True,
) -> None:
    """Check a run from the corpus to the score against its certificate; train random parts of it again.

    A training records hashes of weights, optimizer and losses at intervals, and keeps a few states. This command begins
    at such states, trains again up to the next hash and compares to the bit. It compares everything else by hashes, and
    averages, translates and scores again. Every step is recomputed, equal (its hash alone), not here or differs; where
    one differs, the exit status is 1.

    \b
    Example:
      wmt verify
      wmt verify --updates 420:440 --updates 0:20
      wmt verify --certificate theirs.json
    """
    from pipeline.commands import runs
    from pipeline.common.paths import CERTIFICATE
    from pipeline.common.stage import state_root
    from pipeline.runs.record import records, runs_folder
    from pipeline.verification import check
    from pipeline.verification.certificate import HERE, Files, load

    files, path = HERE, certificate or CERTIFICATE
    if run is not None:
        record = runs.named(run, records(runs_folder()))
        path = certificate or record.results / CERTIFICATE.name
        state = state_root() / "train" / load(path)["training"]["state"]
        files = Files(record.results, record.model, record.folder / "last", state / "checkpoints")
    found = []
    for finding in check.findings(path, files, updates or (), share, translate):
        print(check.text(finding), flush=True)
        found.append(finding)
    print(check.verdict(found))
    raise typer.Exit(1 if any(finding.status == "differs" for finding in found) else 0)


def fork(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run of `wmt runs`.", show_default=False)],
    at: Annotated[int, typer.Option("--at", metavar="UPDATE", help="An update whose state is kept.")],
    settings: Annotated[
        list[str], typer.Option("--set", "-S", metavar="KEY=VALUE", help="A setting to change; give it again for more.")
    ],
) -> None:
    """Train on from a kept state of a run with settings changed; everything else is shared.

    Up to the update the fork is the run. After it, the order of sentences is the run's, and so are the dropout masks
    where shapes agree. So the two differ by the changed settings alone. The fork is a DVC experiment and, in MLflow, a
    child of the run.

    \b
    Example:
      wmt fork sample-sample-s1-3f2a81c0 --at 840 -S training.eps_ls=0
    """
    from pipeline.commands import runs
    from pipeline.runs.record import records, runs_folder
    from pipeline.verification import fork as forking

    record = runs.named(run, records(runs_folder()))
    name = forking.fork(record, at, settings)
    print(f"{name}: {forking.summary(name, record)}")
