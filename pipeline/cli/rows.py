"""`wmt rows`: the rows of the paper's tables."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from pipeline.config import rows

app = typer.Typer()


@app.command("rows", rich_help_panel="Runs")
def list_rows(
    as_json: Annotated[bool, typer.Option("--json", help="A list of objects.")] = False,
    vocabulary: Annotated[
        int, typer.Option(min=1, help="Rows of the embedding; by default those of the paper's code.")
    ] = rows.PAPER_VOCABULARY,
) -> None:
    """List the rows of the paper's tables with exact parameter counts beside the paper's.

    \b
    Example:
      wmt rows --vocabulary 37000
    """
    listed = listing(vocabulary)
    print(json.dumps(listed, indent=2) if as_json else _text(listed, vocabulary))


def listing(vocabulary: int = rows.PAPER_VOCABULARY) -> list[dict[str, Any]]:
    """Return for each row its exact parameter count with `vocabulary` rows of embedding, and the paper's results."""
    from nmt.flops import parameters

    listed = []
    for name, row in rows.table().rows.items():
        model, subwords = rows.model(name, row.pair), rows.settings(name, row.pair)["subwords"]
        # With a closed target vocabulary, the row's own sizes: symbols fill one multiple (CRAFT has 61 with specials).
        sizes = (vocabulary,) if subwords["target"] == "joint" else (subwords["vocabulary"], subwords["multiple_of"])
        facts = {
            "row": name,
            "about": row.about,
            "params": parameters(model, *sizes),
            "vocabulary": vocabulary,
            "paper_params_m": row.paper.params_m,
            "paper_ppl": row.paper.ppl,
            "paper_bleu": row.paper.bleu,
        }
        if row.paper.f1 is not None:
            facts["paper_f1"] = row.paper.f1
        for pair, result in row.paper.table2.items():
            key = f"paper_{pair.replace('-', '_')}"
            facts |= {f"{key}_newstest2014_bleu": result.bleu, f"{key}_flops": result.flops}
        listed.append(facts)
    return listed


def _text(listed: list[dict[str, Any]], vocabulary: int) -> str:
    lines = [f"{'row':<20} {'params':>12} {'paper (M)':>9} {'paper PPL':>9} {'paper BLEU':>10}  what"]
    for row in listed:
        paper = [(row["paper_params_m"], "d"), (row["paper_ppl"], ".2f"), (row["paper_bleu"], ".1f")]
        millions, ppl, bleu = ("" if value is None else format(value, form) for value, form in paper)
        about = row["about"] + (f", F1 {row['paper_f1']}" if "paper_f1" in row else "")
        lines.append(f"{row['row']:<20} {row['params']:>12,} {millions:>9} {ppl:>9} {bleu:>10}  {about}")
    lines.append(f"params: exact, with {vocabulary:,} rows of embedding. PPL and BLEU: newstest2013, en-de.")
    return "\n".join(lines)
