"""List the catalogs, or add one of your own text files.

python -m pipeline.commands.catalog list
python -m pipeline.commands.catalog add NAME --pair en-de --train SRC TGT --valid SRC TGT --test SRC TGT
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import get_args

from nmt.config import InputError
from pipeline.config import catalogs
from pipeline.corpora import user_text


def main(arguments: list[str] | None = None) -> int:
    """The command; the exit status is 0, or 1 for a user's error, told in one sentence."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.commands.catalog", description="The corpora that params.yaml's `corpus` may name."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="print every catalog's name, pairs and description")
    add = commands.add_parser("add", help="write a catalog of your own plain text files: UTF-8, one segment a line")
    add.add_argument("name", help="what params.yaml's `corpus` will call it")
    add.add_argument("--pair", required=True, choices=get_args(catalogs.Pair), help="the languages, from and into")
    for role in user_text.ROLES:
        add.add_argument(
            f"--{role}", required=True, nargs=2, type=Path, metavar=("SRC", "TGT"), help=f"the two sides for {role}"
        )
    add.add_argument("--description", default="", help="one line, for `list`")
    add.add_argument("--force", action="store_true", help="take the place of a catalog of that name")
    options = parser.parse_args(arguments)
    try:
        if options.command == "add":
            texts = {role: (files[0], files[1]) for role in user_text.ROLES for files in [getattr(options, role)]}
            written = user_text.add(
                options.name, options.pair, texts, options.description, options.force, catalogs.CATALOGS
            )
            print(f"{written}: set `corpus: {options.name}` in params.yaml to use it")
        else:
            for catalog in map(catalogs.load, catalogs.names()):
                print(f"{catalog.name:<20} {' '.join(sorted(catalog.pairs)):<12} {catalog.description}")
    except InputError as error:
        print(f"catalog: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"catalog: {error.strerror}: {error.filename}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
