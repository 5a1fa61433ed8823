"""The report's blocks on translations: the run beside the paper's row and the literature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from humanize import precisedelta

from pipeline.common.settings import DataSettings, RunSettings
from pipeline.config import rows
from pipeline.config.scorer import scorer, scorer_of
from pipeline.reporting import figures, parsing
from pipeline.reporting.page import Block, Heading, Paragraph, Table, Tiles


def number(value: float | None, form: str = ".2f") -> str:
    """Return a number for a table; an empty string for None."""
    return "" if value is None else format(value, form)


def duration(seconds: float) -> str:
    """Return a time in its two largest units, as `1 hour and 29 minutes`."""
    units = (("days", 86_400), ("hours", 3_600), ("minutes", 60))
    finer = {"days": "hours", "hours": "minutes", "minutes": "seconds"}
    unit = next((finer[name] for name, size in units if seconds >= size), "seconds")
    return precisedelta(seconds, minimum_unit=unit, suppress=["months", "years"], format="%.0f")


def reference_row(name: str) -> str:
    """Return the paper's row that `name` is compared with: itself, or base or parse-wsj for rows not in the paper."""
    row = rows.row(name)
    own = row.paper.bleu is not None or row.paper.f1 is not None
    return name if own else scorer_of(row.pair).papers_row


def comparable(metrics: Mapping[str, Any]) -> bool:
    """Return whether the scored sets are the paper's: newstest2013 and newstest2014, or WSJ's sections 22 and 23.

    Parts of them, as a mirror may have, are other sets.
    """
    by = scorer(metrics)
    return (metrics[f"{by.key}_valid_set"], metrics[f"{by.key}_set"]) == (by.papers_set, by.papers_test)


def headline(run: RunSettings, data: DataSettings, metrics: Mapping[str, Any]) -> Tiles:
    """Return the numbers for the top of the page. The paper's are beside them only where the sets are the same."""
    paper, same = rows.row(reference_row(run.row)).paper, comparable(metrics)
    by, name = scorer(metrics), reference_row(run.row)
    table2 = paper.table2.get(run.pair)
    interval = f"{metrics[f'{by.key}_low']:.1f} to {metrics[f'{by.key}_high']:.1f} (95%); {metrics[f'{by.key}_set']}"
    items = [(by.title, f"{metrics[by.key]:.1f}", interval)]
    if by.key == "bleu":
        printed = f"; the paper's {name}: {table2.bleu:.1f}" if same and table2 else ""
        items += [
            ("BLEU, the paper's way", f"{metrics['bleu_paper_way']:.1f}", f"Moses tokens{printed}"),
            ("chrF", f"{metrics['chrf']:.1f}", metrics["bleu_set"]),
        ]
    elif same and paper.f1 is not None:
        items.append((f"F1 of the paper's {name}", f"{paper.f1:.1f}", "section 23 of the WSJ"))
    printed = f"; the paper's {name}: {paper.ppl:.2f}" if same and paper.ppl and run.pair == "en-de" else ""
    ours, theirs = metrics["train_flops_counted"], table2.flops if same and table2 else None
    cost = f"counted; the paper's way {metrics['train_flops_paper']:.1e}"
    return Tiles(
        [
            *items,
            (
                "perplexity",
                f"{metrics['ppl_valid']:.2f}",
                f"per {by.unit}; {data.valid.name}{printed}",
            ),
            (
                "training time",
                duration(metrics["train_seconds"]),
                f"{metrics['devices']} x {metrics['device']}, {metrics['precision']}",
            ),
            ("cost in FLOPs", f"{ours:.1e}", cost + (f", the paper's {name} {theirs:.1e}" if theirs else "")),
            ("parameters", f"{metrics['params'] / 1e6:.1f} million", f"{metrics['updates']:,} updates"),
        ]
    )


def translation(run: RunSettings, data: DataSettings, metrics: Mapping[str, Any]) -> list[Block]:
    """Return BLEU beside that of the paper's row, and the steps from sacreBLEU to the paper's scoring."""
    name = reference_row(run.row)
    paper = rows.row(name).paper
    table2 = paper.table2.get(run.pair)
    bleu2, flops = (table2.bleu, table2.flops) if table2 else (None, None)
    # Table 3 is English-German only.
    bleu3, ppl = (paper.bleu, paper.ppl) if run.pair == "en-de" else (None, None)
    interval = f"{metrics['bleu']:.2f} ({metrics['bleu_low']:.2f} to {metrics['bleu_high']:.2f})"
    last, average = f"{metrics['bleu_valid_set']}; last checkpoint", f"{metrics['bleu_set']}; average"
    size = f"{paper.params_m} million" if paper.params_m is not None else ""
    lines = [
        ("BLEU, sacreBLEU (95% interval)", average, "", interval),
        ("BLEU, the paper's way", average, number(bleu2, ".1f"), f"{metrics['bleu_paper_way']:.2f}"),
        ("chrF", average, "", f"{metrics['chrf']:.2f}"),
        ("BLEU, sacreBLEU", last, "", f"{metrics['bleu_valid']:.2f}"),
        ("BLEU, the paper's way", last, number(bleu3, ".1f"), f"{metrics['bleu_valid_paper_way']:.2f}"),
        ("perplexity per subword", last, number(ppl), f"{metrics['ppl_valid']:.2f}"),
        ("parameters", "", size, f"{metrics['params']:,}"),
        ("training FLOPs, the paper's way", "", number(flops, ".1e"), f"{metrics['train_flops_paper']:.2e}"),
        ("training FLOPs, counted", "", "", f"{metrics['train_flops_counted']:.2e}"),
    ]
    other_sets = (
        f"The paper's numbers are of newstest2013 and newstest2014; this run's are of {data.valid.name} and "
        f"{data.test.name}, which is other text: they cannot be compared, so the paper's are not listed."
    )
    names = metrics["bleu_paper_way_steps"].split("; ")
    between = [f"bleu_paper_way_step_{position}" for position in range(2, len(names))]
    keys = ["bleu", *between, "bleu_paper_way"]
    steps = [(step, f"{metrics[key]:.2f}") for step, key in zip(names, keys, strict=True)]
    return [
        Heading("Result"),
        *([] if comparable(metrics) else [Paragraph(other_sets)]),
        parsing.beside(f"the paper's {name}" if comparable(metrics) else None, lines),
        Paragraph(f"sacreBLEU's signature: {metrics['bleu_signature']}. chrF's: {metrics['chrf_signature']}."),
        Heading("From sacreBLEU to the paper's way of scoring"),
        Table(("step, on both sides", f"BLEU, {metrics['bleu_set']}"), steps),
    ]


def results(run: RunSettings, data: DataSettings, metrics: Mapping[str, Any]) -> list[Block]:
    """Return the scores, beside those of the paper's row where the sets are the same."""
    if "f1" in metrics:
        return parsing.results(run, reference_row(run.row), metrics, same_sets=comparable(metrics))
    return translation(run, data, metrics)


def literature(run: RunSettings, metrics: Mapping[str, Any]) -> list[Block]:
    """Return Table 2 for the run's pair with this run in it, as table and chart, and what others reported since."""
    table = rows.table()
    published = [(entry.name, entry.on(run.pair), ".2f") for entry in table.literature]
    published += [
        (f"Transformer ({name}), the paper", row.paper.table2.get(run.pair), ".1f") for name, row in table.rows.items()
    ]
    listed = [
        (name, number(result.bleu, form), number(result.flops, ".1e")) for name, result, form in published if result
    ]
    this = f"this run ({run.row}, {run.corpus}), {metrics['bleu_set']}"
    listed.append((this, f"{metrics['bleu_paper_way']:.2f}", f"{metrics['train_flops_paper']:.2e}"))
    others = [
        (other.name, number(other.bleu), number(other.bleu_paper_way, ".1f"), other.note)
        for other in table.others
        if other.pair == run.pair
    ]
    others.append((this, f"{metrics['bleu']:.2f}", f"{metrics['bleu_paper_way']:.2f}", ""))
    return [
        Heading("Beside Table 2"),
        Paragraph("newstest2014 BLEU the paper's way and training cost in FLOPs, as the paper reports them."),
        figures.against_cost(run, metrics),
        Table(("model", "BLEU, the paper's way", "cost, FLOPs"), listed, frozenset([len(listed) - 1])),
        Paragraph("Later Transformers on newstest2014, as their authors report them:"),
        Table(("model", "sacreBLEU", "the paper's way", "note"), others, frozenset([len(others) - 1])),
    ]
