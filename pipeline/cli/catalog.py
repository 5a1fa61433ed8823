"""What params.yaml may name: `wmt rows` lists the rows, `wmt catalog` the corpora, and adds one of your own."""

from collections import deque
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from nmt.errors import InputError, printable
from pipeline.cli.repository import check_folder
from pipeline.config import rows

ABOUT = "List the corpora that params.yaml's `corpus` may name, or add one of your own text files."
app = typer.Typer()
catalog = typer.Typer(no_args_is_help=True, help=f"{ABOUT}\n\n\b\nExample:\n  wmt catalog list")
TEXT = "SRC TGT|TSV|TMX"


class _OneOrTwoValues(TyperCommand):
    """Gives each text's option one file that has both sides or two: options of Typer have a fixed number of values."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from pipeline.data.text_files import holds_both

        texts = ("--train", "--valid", "--test")
        # Also as --train=a.en a.de.
        parts = (arg.split("=", 1) if arg.startswith(tuple(f"{text}=" for text in texts)) else [arg] for arg in args)
        given, rest = list[str](), deque(chain.from_iterable(parts))
        while rest:
            given.append(rest.popleft())
            if given[-1] in texts and rest:
                given.append(rest.popleft())
                if rest and not holds_both(Path(given[-1])) and not rest[0].startswith("-"):
                    given += [given[-2], rest.popleft()]
        return super().parse_args(ctx, given)


@app.command("rows", rich_help_panel="Runs")
def list_rows() -> None:
    """List the rows of the paper's tables with exact parameter counts beside the paper's.

    \b
    Example:
      wmt rows
    """
    from nmt.flops import parameters

    print(f"{'row':<23} {'params':>12} {'paper (M)':>9} {'paper PPL':>9} {'paper BLEU':>10}  what")
    for name, row in rows.table().rows.items():
        subwords, paper = rows.settings(name, row.pair)["subwords"], row.paper
        # With a closed target vocabulary, the row's own sizes: symbols fill one multiple (CRAFT has 61 with specials).
        closed, multiple = subwords["target"] == "closed", subwords["multiple_of"]
        sizes = (-(-subwords["vocabulary"] // multiple) * multiple, multiple) if closed else (row.vocabulary,)
        count = parameters(rows.model(name, row.pair), *sizes)
        printed = [(paper.params_m, "d"), (paper.ppl, ".2f"), (paper.bleu, ".1f")]
        millions, ppl, bleu = ("" if value is None else format(value, form) for value, form in printed)
        about = row.about + ("" if paper.f1 is None else f", F1 {paper.f1}")
        print(f"{name:<23} {count:>12,} {millions:>9} {ppl:>9} {bleu:>10}  {about}")
    print(f"params: exact; the paper's rows with {rows.PAPER_VOCABULARY:,} rows of embedding, others with their own.")
    print("PPL and BLEU: newstest2013, en-de.")


@catalog.command("list")
def list_catalogs() -> None:
    """Print every catalog's name, pairs and description.

    \b
    Example:
      wmt catalog list
    """
    check_folder()
    from pipeline.config import catalogs

    broken = list[str]()
    for name in catalogs.names():
        try:
            one = catalogs.load(name)
        except InputError as error:
            broken.append(str(error))
        else:
            print(printable(f"{one.name:<20} {' '.join(sorted(one.pairs)):<12} {one.description}"))
    if broken:
        raise InputError("; ".join(broken))


@catalog.command("add", cls=_OneOrTwoValues)
def add_catalog(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What params.yaml's `corpus` will call it.")],
    pair: Annotated[str, typer.Option(help="The languages, from and into, by their ISO 639 codes.")],
    train: Annotated[list[Path], typer.Option(metavar=TEXT, help="Training text; may be repeated.")],
    valid: Annotated[list[Path], typer.Option(metavar=TEXT, help="Text for validation.")] = [],
    test: Annotated[list[Path], typer.Option(metavar=TEXT, help="Text for the test; may be repeated.")] = [],
    holdout: Annotated[
        int | None, typer.Option(min=1, help="Take so many pairs for each of --valid and --test that is missing.")
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out lines that are no UTF-8 or no pair, or over-long.")
    ] = False,
    dedup: Annotated[bool, typer.Option("--dedup", help="Leave out repeated training pairs.")] = False,
    copy: Annotated[bool, typer.Option("--copy", help="Copy plain files, in place of links to them.")] = False,
    description: Annotated[str, typer.Option(help="One line, for `wmt catalog list`.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace a catalog of that name.")] = False,
) -> None:
    """Write a catalog of your own text: two plain UTF-8 files, one segment per line, a TSV of two columns, or a TMX.

    A TSV has the source first, no header and no quotes. Each may end in .gz, .bz2, .xz or .zip; of WMT's .sgm and .xml
    files the segments are taken. With --force a catalog is written anew, without what you set in it. For en-tree give
    each treebank, a plain file in Penn bracketing whose name ends in .mrg, as both sides: `--train train.mrg
    train.mrg`.

    \b
    Example:
      wmt catalog add mine --pair en-de --train train.en train.de \\
        --valid dev.en dev.de --test test.en test.de
      wmt catalog add mine --pair cs-en --train a.cs.gz a.en.gz --train b.tsv --holdout 2000
      wmt catalog add ours --pair cs-en --train a.cs a.en --valid dev.cs dev.en \\
        --test news.cs news.en --test medical.cs medical.en
    """
    check_folder()
    from pipeline.data import user_text

    paths = {"train": train, "valid": valid, "test": test}
    changes = user_text.Changes(holdout, skip_bad, dedup)
    written = user_text.add(name, pair, paths, description, changes, force=force, copy=copy)
    print(f"{written}: set `corpus: {name}` in params.yaml to use it")
