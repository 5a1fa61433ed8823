"""The report's blocks on scored trees: F1 beside the paper's row, and Table 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.common.settings import RunSettings
from pipeline.config import rows
from pipeline.reporting.page import Block, Heading, Paragraph, Table


def beside(paper: str | None, lines: Sequence[tuple[str, str, str, str]]) -> Table:
    """Return a table of measure, set, the paper's number and this run's; without `paper`, its column is left out."""
    if paper is None:
        return Table(("measure", "set and model", "this run"), [(name, of, ours) for name, of, _, ours in lines])
    return Table(("measure", "set and model", paper, "this run"), lines)


def results(run: RunSettings, reference: str, metrics: Mapping[str, Any], *, same_sets: bool) -> list[Block]:
    """Return the scores, with `same_sets` beside those of the paper's row `reference` and of Table 4's systems."""
    paper = rows.row(reference).paper
    lines = []
    for prefix, model in (("f1", "average"), ("f1_valid", "last checkpoint")):
        where = f"{metrics[f'{prefix}_set']}; {model}"
        interval = f"{metrics[prefix]:.2f} ({metrics[f'{prefix}_low']:.2f} to {metrics[f'{prefix}_high']:.2f})"
        printed = f"{paper.f1:.1f}" if paper.f1 is not None and prefix == "f1" else ""
        lines += [
            ("F1 (95% interval)", where, printed, interval),
            ("F1, at most 40 words", where, "", f"{metrics[f'{prefix}_at_most_40_words']:.2f}"),
            ("recall", where, "", f"{metrics[f'{prefix}_recall']:.2f}"),
            ("precision", where, "", f"{metrics[f'{prefix}_precision']:.2f}"),
            ("complete match", where, "", f"{metrics[f'{prefix}_complete_match']:.2f}"),
            ("crossing brackets a sentence", where, "", f"{metrics[f'{prefix}_average_crossing']:.2f}"),
            ("outputs that had to be repaired", where, "", f"{metrics[f'{prefix}_malformed']:.2%}"),
            ("sentences not scored", where, "", f"{metrics[f'{prefix}_not_scored']:,}"),
        ]
    lines += [
        ("perplexity a symbol", metrics["f1_valid_set"], "", f"{metrics['ppl_valid']:.4f}"),
        ("parameters", "", "", f"{metrics['params']:,}"),
        ("training FLOPs, the paper's way", "", "", f"{metrics['train_flops_paper']:.2e}"),
        ("training FLOPs, counted", "", "", f"{metrics['train_flops_counted']:.2e}"),
    ]
    found: list[Block] = [Heading("Result")]
    if not same_sets:
        return [
            *found,
            Paragraph("The paper's numbers are of section 23 of the WSJ, which is other text: they are not listed."),
            beside(None, lines),
            Paragraph(f"EVALB's signature: {metrics['f1_signature']}."),
        ]
    listed = [(each.name, each.training, f"{each.f1:.1f}") for each in rows.table().parsers]
    listed += [
        (f"Transformer ({name}), the paper", "", f"{row.paper.f1:.1f}")
        for name, row in rows.table().rows.items()
        if row.paper.f1 is not None
    ]
    listed.append((f"this run ({run.row}, {run.corpus}), {metrics['f1_set']}", "", f"{metrics['f1']:.2f}"))
    return [
        *found,
        beside(f"the paper's {reference}", lines),
        Paragraph(f"EVALB's signature: {metrics['f1_signature']}."),
        Heading("Beside Table 4"),
        Table(("parser", "training", "F1"), listed, frozenset([len(listed) - 1])),
    ]
