"""The command `wmt`: its commands by topic, errors and exit statuses.

A command reads its options and calls a function of pipeline or nmt. Everything slow is imported inside the commands,
so that `--help` and shell completion are fast. Stages are run by `python -m pipeline STAGE`, not from here.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from nmt.config import Precision
from pipeline.commands import catalog, models, verification
from pipeline.commands.repository import in_repository
from pipeline.orchestration import commands

MODELS, RUNS, DATA, SERVICES = "Models", "Runs", "Data", "Services"
"""Panels of the help."""


class Commands(TyperGroup):
    """The commands of `wmt`. Errors that a user can fix become one sentence and an exit status, only here."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command. Status 1 for what a user can fix, 130 for Ctrl-C, 0 where the reader has closed the pipe."""
        try:
            try:
                result = super().invoke(ctx)
            except typer.Exit:
                _flush()
                raise
            _flush()
        except KeyboardInterrupt as error:
            raise typer.Exit(130) from error
        except BrokenPipeError as error:
            _discard_output()
            raise typer.Exit from error
        except (OSError, ValueError) as error:
            from nmt.config import InputError

            if not isinstance(error, InputError | OSError):
                raise
            try:
                _flush()
            except OSError:
                _discard_output()
            print(f"{ctx.invoked_subcommand}: {_sentence(error)}", file=sys.stderr)
            raise typer.Exit(1) from error
        return result


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _flush() -> None:
    """Write what was printed. Python has no standard output where the shell has closed it (`>&-`)."""
    if sys.stdout is not None:
        sys.stdout.flush()


def _discard_output() -> None:
    """Redirect standard output to nowhere: Python would raise again when it flushes the stream at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class SeveralValues(TyperCommand):
    """A command whose repeatable options take several values at once: `--seeds 1 2` is `--seeds 1 --seeds 2`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the option's name before its second value and those after it."""
        names = {name for option in self.params if getattr(option, "multiple", False) for name in option.opts}
        repeated: list[str] = []
        name, values = "", 0
        for argument in args:
            if argument.startswith("-"):
                name, values = argument, 0
            elif name in names:
                values += 1
                if values > 1:
                    repeated.append(name)
            repeated.append(argument)
        return super().parse_args(ctx, repeated)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(catalog.app, name="catalog", rich_help_panel=DATA)
app.command(cls=SeveralValues, rich_help_panel=MODELS)(models.translate)
app.command("parse", cls=SeveralValues, rich_help_panel=MODELS, help=models.PARSE_HELP)(models.translate)
app.command(cls=SeveralValues, rich_help_panel=MODELS)(models.score)
app.command(cls=SeveralValues, rich_help_panel=RUNS)(verification.verify)
app.command(rich_help_panel=RUNS)(verification.fork)
for command in (models.evalb, models.bleu, models.attention, models.export):
    app.command(rich_help_panel=MODELS)(command)


@app.callback()
def wmt() -> None:
    """Raw WMT14 text to a scored Transformer.

    `dvc repro` runs the pipeline that params.yaml describes. These commands do everything else.

    \b
    Example:
      dvc repro
      wmt summary
      wmt translate models/average --input in.en --output out.de
    """


@app.command(rich_help_panel=RUNS)
def plan(
    no_measure: Annotated[bool, typer.Option("--no-measure", help="Do not measure, and estimate no time.")] = False,
    on: Annotated[str | None, typer.Option(metavar="GPU", help="Compute the time on rented GPUs: H100, ...")] = None,
    devices: Annotated[int, typer.Option(help="How many of them.")] = 1,
    price: Annotated[float | None, typer.Option(help="What all of them cost in an hour, in any currency.")] = None,
    utilisation: Annotated[float, typer.Option(help="The share of their peak that training reaches.")] = 0.3,
) -> None:
    """List the stages that would run, and estimate the disk, memory, operations and time that they need.

    It writes nothing. It measures the speed of training for a few seconds with the configured model on this machine,
    and estimates everything else from the configuration and the known sizes of the corpora. The exit status is 1 where
    disk or memory do not suffice.

    \b
    Example:
      wmt plan --no-measure
      wmt plan --no-measure --on H100 --devices 8 --price 24
    """
    from pipeline.commands import plan as planning
    from pipeline.commands.rental import Rental

    rental = Rental(on or "", devices, price, utilisation)
    if on is None and rental != Rental(""):
        raise typer.BadParameter(
            "--devices, --price and --utilisation are of rented GPUs: name them", param_hint="--on"
        )
    raise typer.Exit(0 if planning.report(measure=not no_measure, rental=None if on is None else rental) else 1)


@app.command(rich_help_panel=RUNS)
def rows(
    as_json: Annotated[bool, typer.Option("--json", help="A list of objects.")] = False,
    vocabulary: Annotated[
        int | None, typer.Option(help="Rows of the embedding; by default those of the paper's code.")
    ] = None,
) -> None:
    """List the rows of the paper's tables with exact parameter counts beside the paper's.

    \b
    Example:
      wmt rows --vocabulary 37000
    """
    from pipeline.commands import rows as table
    from pipeline.config.rows import PAPER_VOCABULARY

    items = table.listing(PAPER_VOCABULARY if vocabulary is None else vocabulary)
    print(json.dumps(items, indent=2) if as_json else table.text(items))


@app.command(rich_help_panel=RUNS)
def summary() -> None:
    """Print the BLEU or F1 of the finished run, its interval, and where report and model are.

    \b
    Example:
      wmt summary
    """
    from pipeline.common.paths import SCORES
    from pipeline.common.stage import read_json
    from pipeline.config import scorer

    print(scorer.summary(read_json(SCORES)))
    print("report  results/report.html\nmodel   models/average")


@app.command(rich_help_panel=RUNS)
@in_repository
def runs() -> None:
    """List the runs that have a record in work/runs: their settings, status, score, and whether MLflow has all of them.

    \b
    Example:
      wmt runs
    """
    from pipeline.commands import runs as recorded

    print(recorded.listing())


@app.command(rich_help_panel=RUNS)
def compare(
    first: Annotated[str, typer.Argument(metavar="RUN", help="The baseline's id (a beginning is enough).")],
    second: Annotated[str, typer.Argument(metavar="RUN", help="The other run's id.")],
    output: Annotated[Path, typer.Option(metavar="FILE", help="The page.")] = Path("results/comparison.html"),
) -> None:
    """Compare two runs on the same test set, as a page: scores, paired bootstrap, settings, translations side by side.

    `wmt runs` lists the ids.

    \b
    Example:
      wmt compare sample-sample-s1-3f2a81c0 sample-sample-s2-77b09d1e
    """
    from pipeline.commands import comparison

    print(comparison.compare(first, second, output))


@app.command(rich_help_panel=RUNS)
@in_repository
def publish(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="RUN...", help="Ids of runs (a beginning is enough).")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All runs, also those published before.")] = False,
) -> None:
    """Bring MLflow to what the records of runs say. Doing it twice changes nothing.

    By default it publishes the runs that are not in MLflow yet or only in part, and the run whose results DVC has
    restored in this folder.

    \b
    Example:
      wmt publish
      wmt publish base-wmt14-s1-3f2a81c0
    """
    from pipeline.commands import runs as recorded

    for line in recorded.publish(names or (), everything):
        print(line)


@app.command(cls=SeveralValues, rich_help_panel=RUNS)
@in_repository
def states(
    free: Annotated[
        list[str] | None, typer.Option(metavar="STATE...", help="Delete these; the first letters of a name suffice.")
    ] = None,
    older: Annotated[
        float | None, typer.Option(metavar="DAYS", help="Delete finished states not used for DAYS days.")
    ] = None,
) -> None:
    """List the states that trainings save to be resumed or extended, and delete some.

    Finished results do not need them: they are in models/ and in DVC's cache. Without its state, a training can no
    longer be resumed or extended to more updates.

    \b
    Example:
      wmt states --older 30
    """
    import time

    from pipeline.commands import states as saved
    from pipeline.common.stage import state_root

    if not free and older is None:
        print(saved.listing(saved.states(state_root()), time.time()))
        return
    for state in saved.free_chosen(state_root(), free or (), older):
        print(f"freed {state.name}: {state.bytes / 1e6:,.0f} MB")


@app.command(rich_help_panel=RUNS)
@in_repository
def join(
    state: Annotated[
        Path | None,
        typer.Argument(
            metavar="STATE", help="The training's folder; by default the one that begins.", show_default=False
        ),
    ] = None,
    wait: Annotated[float, typer.Option(metavar="HOURS", help="How long to wait for a training to begin.")] = 24.0,
) -> None:
    """Join a training that another machine runs, or wait for one.

    All machines share the state root and the repository, and set the same rendezvous: WMT_NODES=2
    WMT_RENDEZVOUS=first-machine:29400.

    \b
    Example:
      wmt join
    """
    from pipeline.commands import join as joining

    raise typer.Exit(joining.join(state, wait))


@app.command(cls=SeveralValues, rich_help_panel=RUNS)
def ablation(
    rows: Annotated[list[str], typer.Option(metavar="ROW...", help="Rows of the paper's tables.")] = [
        "base",
        "A-h1",
        "B-dk16",
        "C-N2",
        "D-pdrop0.0",
        "D-eps0.0",
        "E-learned-positions",
    ],
    seeds: Annotated[list[int], typer.Option(metavar="SEED...", help="Seeds for every row.")] = [1, 2, 3],
    corpus: Annotated[str | None, typer.Option(help="A file of data/catalog/; params.yaml's by default.")] = None,
    width: Annotated[int, typer.Option(min=1, help="Divides every width.")] = 4,
    depth: Annotated[int, typer.Option(min=1, help="Divides the layers.")] = 2,
    updates: Annotated[int, typer.Option(help="Updates of every run.")] = 1000,
    tokens: Annotated[int, typer.Option(help="Target tokens per update.")] = 1500,
    warmup: Annotated[int, typer.Option(help="Updates of warm-up.")] = 400,
    merges: Annotated[int, typer.Option(help="BPE merges, or word pieces.")] = 4000,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 1,
    rate: Annotated[float, typer.Option(help="Multiplies Eq. 3.")] = 1.0,
    precision: Annotated[Precision, typer.Option(help="Precision of the matrix products.")] = "float32",
    out: Annotated[Path, typer.Option(metavar="FILE", help="The report.")] = Path("results/ablation.md"),
) -> None:
    """Train rows of Table 3, scaled down together, with several seeds under one budget, and compare them.

    Every run is a DVC experiment of params.yaml's pair (`dvc exp show` lists them) and of the repository as it is when
    the ablation begins. Experiments that exist already are not run again. All rows have their widths (d_model, d_ff,
    d_k, d_v) divided by --width and their layers by --depth; heads, dropout, label smoothing and positions are the
    row's own. The ablation compares perplexity and BLEU of the validation set, from the last checkpoint, as in Table 3.

    \b
    Example:
      wmt ablation --rows base A-h1 C-N2 --seeds 1 2 3 --updates 1000
    """
    options = dict(locals())  # The parameters have the names of the fields of Options.
    from pipeline.commands import ablation as study

    print(study.run(study.Options(**options)))


for service in commands.ui, commands.serve, commands.notify:
    app.command(rich_help_panel=SERVICES)(service)


def main() -> None:
    """Run the command line; raises SystemExit."""
    app(prog_name="wmt")


if __name__ == "__main__":
    main()
