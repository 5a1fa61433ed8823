"""`wmt rows`: the rows of the paper's tables."""

from __future__ import annotations

import typer

from pipeline.config import rows

app = typer.Typer()


@app.command("rows", rich_help_panel="Runs")
def list_rows() -> None:
    """List the rows of the paper's tables with exact parameter counts beside the paper's.

    \b
    Example:
      wmt rows
    """
    from nmt.flops import parameters

    print(f"{'row':<20} {'params':>12} {'paper (M)':>9} {'paper PPL':>9} {'paper BLEU':>10}  what")
    for name, row in rows.table().rows.items():
        subwords, paper = rows.settings(name, row.pair)["subwords"], row.paper
        # With a closed target vocabulary, the row's own sizes: symbols fill one multiple (CRAFT has 61 with specials).
        closed = subwords["target"] == "closed"
        sizes = (subwords["vocabulary"], subwords["multiple_of"]) if closed else (rows.PAPER_VOCABULARY,)
        count = parameters(rows.model(name, row.pair), *sizes)
        printed = [(paper.params_m, "d"), (paper.ppl, ".2f"), (paper.bleu, ".1f")]
        millions, ppl, bleu = ("" if value is None else format(value, form) for value, form in printed)
        about = row.about + ("" if paper.f1 is None else f", F1 {paper.f1}")
        print(f"{name:<20} {count:>12,} {millions:>9} {ppl:>9} {bleu:>10}  {about}")
    print(f"params: exact, with {rows.PAPER_VOCABULARY:,} rows of embedding. PPL and BLEU: newstest2013, en-de.")
