"""List the rows of the paper's tables with exact parameter counts beside the paper's."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from nmt.flops import parameters
from pipeline.config import rows


def listing(vocabulary: int = rows.PAPER_VOCABULARY) -> list[dict[str, Any]]:
    """One object a row: its exact parameter count for `vocabulary` rows of embedding, and the paper's numbers."""
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


def _text(items: list[dict[str, Any]]) -> str:
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


def main(arguments: list[str] | None = None) -> int:
    """Print the rows; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.commands.rows", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print a list of objects")
    parser.add_argument(
        "--vocabulary", type=int, default=rows.PAPER_VOCABULARY, help="rows of the embedding (%(default)s)"
    )
    options = parser.parse_args(arguments)
    if options.vocabulary < 1:
        print(f"rows: --vocabulary is {options.vocabulary}, but must be at least 1", file=sys.stderr)
        return 1
    items = listing(options.vocabulary)
    print(json.dumps(items, indent=2) if options.json else _text(items))
    return 0


if __name__ == "__main__":
    sys.exit(main())
