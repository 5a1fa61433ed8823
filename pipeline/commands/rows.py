"""List the rows of the paper's tables with exact parameter counts beside the paper's."""

from __future__ import annotations

from typing import Any

from nmt.config import InputError
from nmt.flops import parameters
from pipeline.config import rows


def listing(vocabulary: int = rows.PAPER_VOCABULARY) -> list[dict[str, Any]]:
    """Return for each row its exact parameter count with `vocabulary` rows of embedding, and the paper's results.

    Raises InputError for less than one row of embedding.
    """
    if vocabulary < 1:
        raise InputError(f"--vocabulary is {vocabulary}, but must be at least 1")
    listed = []
    for name, entry in rows.table().rows.items():
        item: dict[str, Any] = {
            "row": name,
            "about": entry.about,
            "params": parameters(rows.model(name), vocabulary),
            "vocabulary": vocabulary,
            "paper_params_m": entry.paper.params_m,
            "paper_ppl": entry.paper.ppl,
            "paper_bleu": entry.paper.bleu,
        }
        for pair, result in entry.paper.table2.items():
            key = pair.replace("-", "_")
            item[f"paper_{key}_newstest2014_bleu"] = result.bleu
            item[f"paper_{key}_flops"] = result.flops
        listed.append(item)
    return listed


def text(items: list[dict[str, Any]]) -> str:
    """Return the same as a table."""

    def cell(value: Any, form: str) -> str:
        return "" if value is None else format(value, form)

    lines = [f"{'row':<20} {'params':>12} {'paper (M)':>9} {'paper PPL':>9} {'paper BLEU':>10}  what"]
    lines.extend(
        f"{item['row']:<20} {item['params']:>12,} {cell(item['paper_params_m'], 'd'):>9} "
        f"{cell(item['paper_ppl'], '.2f'):>9} {cell(item['paper_bleu'], '.1f'):>10}  {item['about']}"
        for item in items
    )
    lines.append(
        f"params: exact, with {items[0]['vocabulary']:,} rows of embedding. PPL and BLEU: newstest2013, en-de."
    )
    return "\n".join(lines)
