"""The commands of `wmt catalog`: list the corpora, and add one of the user's own text files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.repository import check_folder
from pipeline.config.settings import Pair

app = typer.Typer(no_args_is_help=True)
Text = tuple[Path, Path]


@app.callback()
def _catalog() -> None:
    """List the corpora that params.yaml's `corpus` may name, or add one of your own text files.

    \b
    Example:
      wmt catalog list
    """


@app.command("list")
def list_catalogs() -> None:
    """Print every catalog's name, pairs and description.

    \b
    Example:
      wmt catalog list
    """
    check_folder()
    from pipeline.config import catalogs

    for one in map(catalogs.load, catalogs.names()):
        print(f"{one.name:<20} {' '.join(sorted(one.pairs)):<12} {one.description}")


@app.command("add")
def add_catalog(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="What params.yaml's `corpus` will call it.", show_default=False)
    ],
    pair: Annotated[Pair, typer.Option(help="The languages, from and into.", show_default=False)],
    train: Annotated[Text, typer.Option(metavar="SRC TGT", help="The two sides for training.", show_default=False)],
    valid: Annotated[Text, typer.Option(metavar="SRC TGT", help="The two sides for validation.", show_default=False)],
    test: Annotated[Text, typer.Option(metavar="SRC TGT", help="The two sides for the test.", show_default=False)],
    description: Annotated[str, typer.Option(help="One line, for `wmt catalog list`.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace a catalog of that name.")] = False,
) -> None:
    """Write a catalog of your own plain text files: UTF-8, one segment per line.

    For en-tree give each treebank, a file in Penn bracketing, as both sides: `--train train.mrg train.mrg`.

    \b
    Example:
      wmt catalog add mine --pair en-de --train train.en train.de \\
        --valid dev.en dev.de --test test.en test.de
    """
    check_folder()
    from pipeline.config.paths import CATALOGS
    from pipeline.data import user_text

    texts = {"train": train, "valid": valid, "test": test}
    written = user_text.add(name, pair, texts, description, force, CATALOGS)
    print(f"{written}: set `corpus: {name}` in params.yaml to use it")
