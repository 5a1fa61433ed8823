"""The command `wmt`: its commands by topic, errors and exit statuses.

A parameter of a command is an option. Everything slow is imported inside the commands, so that `--help` and shell
completion are fast. Stages are run by `python -m pipeline STAGE`, not from here.
"""

import signal
import sys
from inspect import cleandoc
from typing import Any

import typer
from typer.core import TyperGroup

from nmt.common.processes import spare_imports
from nmt.errors import printable
from pipeline.cli import ablation, catalog, models, plan, runs
from pipeline.config import wording

ENDING = (signal.SIGTERM, signal.SIGHUP)


class Commands(TyperGroup):
    """The commands of `wmt`. Errors that a user can fix become one sentence and an exit status, only here."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, each paragraph of its help on one line: Typer wraps lines, and keeps our line breaks."""
        command = super().get_command(ctx, cmd_name)
        for subcommand in (command, *getattr(command, "commands", {}).values()):
            if subcommand is not None and subcommand.help is not None:
                paragraphs = cleandoc(subcommand.help).split("\n\n")
                subcommand.help = "\n\n".join(
                    part if part[0] == "\b" else part.replace("\n", " ") for part in paragraphs
                )
        return command

    def invoke(self, ctx: Any) -> Any:
        """Run a command. Status 1 for what a user can fix. Typer ends quietly at Ctrl-C and at a closed pipe."""
        try:
            try:
                return super().invoke(ctx)
            finally:
                print(end="", flush=True)
        except BrokenPipeError:
            raise
        except Exception as error:
            if (sentence := wording.sentence(error)) is None:
                raise
            print(printable(f"{ctx.invoked_subcommand}: {sentence}"), file=sys.stderr)
            raise typer.Exit(1) from error


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for topic in (models, plan, catalog, runs, ablation):
    app.add_typer(topic.app)
app.add_typer(catalog.catalog, name="catalog", rich_help_panel="Data")


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


def main() -> None:
    spare_imports()
    for number in ENDING:
        if signal.getsignal(number) == signal.SIG_DFL:  # Not under nohup.
            signal.signal(number, _end)
    app(prog_name="wmt")


def _end(number: int, _: object) -> None:
    """Raise an exception, as Ctrl-C does, so that what is half written is removed."""
    for later in ENDING:  # A terminal that closes sends two.
        signal.signal(later, lambda *_: None)
    sys.exit(128 + number)
