"""List the rows of the paper's tables with exact parameter counts beside the paper's."""

from __future__ import annotations

from typing import Any

from nmt.config import InputError
from nmt.flops import parameters
from pipeline.config import rows


def listing(vocabulary: int = rows.PAPER_VOCABULARY) -> list[dict[str, Any]]:
    """Return for each row its exact parameter count with `vocabulary` rows of embedding, and the paper's."""
    if vocabulary < 1:
        raise InputError(f"--vocabulary is {vocabulary}, but must be at least 1")
    listed = []
    for name, entry in rows.table().rows.items():
        item: dict[str, Any] = {
            "row": name,
            "about": entry.about,
            "params": _parameters(name, entry, vocabulary),
            "vocabulary": vocabulary,
            "paper_params_m": entry.paper.params_m,
            "paper_ppl": entry.paper.ppl,
            "paper_bleu": entry.paper.bleu,
        }
        if entry.paper.f1 is not None:
            item["paper_f1"] = entry.paper.f1
        for pair, result in entry.paper.table2.items():
            key = pair.replace("-", "_")
            item[f"paper_{key}_newstest2014_bleu"] = result.bleu
            item[f"paper_{key}_flops"] = result.flops
        listed.append(item)
    return listed


def _parameters(name: str, entry: rows.Row, vocabulary: int) -> int:
    """Return a row's parameter count; with a closed target vocabulary, the row's own sizes are taken."""
    model, subwords = rows.model(name, entry.pair), rows.settings(name, entry.pair)["subwords"]
    if subwords["target"] == "joint":
        return parameters(model, vocabulary)
    # The symbols of trees fill one multiple: CRAFT has 61 with the specials.
    return parameters(model, subwords["vocabulary"], subwords["multiple_of"])


def text(items: list[dict[str, Any]]) -> str:
    """Return the same as a table."""

    def cell(value: Any, form: str) -> str:
        return "" if value is None else format(value, form)

    lines = [f"{'row':<20} {'params':>12} {'paper (M)':>9} {'paper PPL':>9} {'paper BLEU':>10}  what"]
    lines.extend(
        f"{item['row']:<20} {item['params']:>12,} {cell(item['paper_params_m'], 'd'):>9} "
        f"{cell(item['paper_ppl'], '.2f'):>9} {cell(item['paper_bleu'], '.1f'):>10}  {item['about']}"
        + (f", F1 {item['paper_f1']}" if "paper_f1" in item else "")
        for item in items
    )
    lines.append(
        f"params: exact, with {items[0]['vocabulary']:,} rows of embedding. PPL and BLEU: newstest2013, en-de."
    )
    return "\n".join(lines)
