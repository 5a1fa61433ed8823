"""The commands of `wmt catalog`: list the corpora, and add one of the user's own text files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.repository import in_repository

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
@in_repository
def list_catalogs() -> None:
    """Print every catalog's name, pairs and description.

    \b
    Example:
      wmt catalog list
    """
    from pipeline.config import catalogs

    for one in map(catalogs.load, catalogs.names()):
        print(f"{one.name:<20} {' '.join(sorted(one.pairs)):<12} {one.description}")


def _pairs() -> list[str]:
    from typing import get_args

    from pipeline.common.settings import Pair

    return list(get_args(Pair))


def _known_pair(pair: str) -> str:
    if pair not in _pairs():
        raise typer.BadParameter(f"{pair!r} is not one of {', '.join(map(repr, _pairs()))}.")
    return pair


@app.command("add")
@in_repository
def add_catalog(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="What params.yaml's `corpus` will call it.", show_default=False)
    ],
    pair: Annotated[
        str,
        typer.Option(
            help="The languages, from and into.", show_default=False, callback=_known_pair, autocompletion=_pairs
        ),
    ],
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
    from pipeline.common.paths import CATALOGS
    from pipeline.corpora import user_text

    texts = {"train": train, "valid": valid, "test": test}
    written = user_text.add(name, pair, texts, description, force, CATALOGS)
    print(f"{written}: set `corpus: {name}` in params.yaml to use it")
