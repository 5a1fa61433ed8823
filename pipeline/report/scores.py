"""The report's blocks on scores: the run beside the paper's row, and beside the systems of the paper's tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.config import rows
from pipeline.config.corpora import DataSettings, RunSettings
from pipeline.config.tasks import TRANSLATION, duration, score_and_interval, task_in, task_of
from pipeline.report.page import Block, Heading, Paragraph, Table, Tiles

Lines = list[tuple[str, str, str, str]]
"""Measure, set and model, the paper's number or an empty string, this run's number."""
TREE_MEASURES = (
    ("F1, at most 40 words", "at_most_40_words", ".2f"),
    ("recall", "recall", ".2f"),
    ("precision", "precision", ".2f"),
    ("complete match", "complete_match", ".2f"),
    ("crossing brackets a sentence", "average_crossing", ".2f"),
    ("outputs that had to be repaired", "malformed", ".2%"),
    ("sentences not scored", "not_scored", ","),
)
"""Measure, end of its key in scores.json, and format."""


def number(value: float | None, form: str = ".2f") -> str:
    return "" if value is None else format(value, form)


def reference_row(name: str) -> str:
    """Return the paper's row that `name` is compared with: itself, or base or parse-wsj for rows not in the paper."""
    row = rows.row(name)
    own = row.paper.bleu is not None or row.paper.f1 is not None
    return name if own else task_of(row.pair).papers_row


def comparable(metrics: Mapping[str, Any]) -> bool:
    """Return whether the scored sets are the paper's: newstest2013 and newstest2014, or WSJ's sections 22 and 23.

    Parts of them, as a mirror may have, are other sets.
    """
    by = task_in(metrics)
    return (metrics[f"valid_{by.key}_set"], metrics[f"{by.key}_set"]) == (by.papers_set, by.papers_test)


def hardware(metrics: Mapping[str, Any]) -> str:
    return "a CPU" if metrics["device"] == "cpu" else f"{metrics['devices']} x {metrics['device']}"


def lead(run: RunSettings, metrics: Mapping[str, Any], text: str) -> str:
    """Return the report in one sentence, and what the text is."""
    by = task_in(metrics)
    score, _ = score_and_interval(metrics, by.key)
    return (
        f"A Transformer with {metrics['params'] / 1e6:.1f} million parameters, trained from raw text in "
        f"{duration(metrics['train_seconds'])} on {hardware(metrics)}: {by.title} {score} on "
        f"{metrics[f'{by.key}_set']}, {run.pair}. Text: {text}."
    )


def tile(title: str, metrics: Mapping[str, Any]) -> tuple[str, str, str]:
    key = task_in(metrics).key
    score, interval = score_and_interval(metrics, key)
    return title, score, f"{interval} (95%); {metrics[f'{key}_set']}"


def headline(run: RunSettings, data: DataSettings, metrics: Mapping[str, Any]) -> Tiles:
    """Return the numbers for the top of the page. The paper's are beside them only where the sets are the same."""
    by, name, same = task_in(metrics), reference_row(run.row), comparable(metrics)
    paper = rows.row(name).paper
    printed = (paper.table2[run.pair].bleu if run.pair in paper.table2 else None) if by is TRANSLATION else paper.f1
    title, score, note = tile(by.title, metrics)
    if same and printed is not None:
        ours = f"; the paper's way {metrics['bleu_paper_way']:.1f}" if by is TRANSLATION else ""
        note += f"{ours}; the paper's {name}: {printed:.1f}"
    ppl = f"; the paper's {name}: {paper.ppl:.2f}" if same and paper.ppl and run.pair == "en-de" else ""
    return Tiles(
        [
            (title, score, note),
            ("perplexity", f"{metrics['valid_ppl']:.2f}", f"per {by.unit}; {data.valid.name}{ppl}"),
            ("training time", duration(metrics["train_seconds"]), f"{hardware(metrics)}, {metrics['precision']}"),
            ("parameters", f"{metrics['params'] / 1e6:.1f} million", f"{metrics['updates']:,} updates"),
        ]
    )


def results(run: RunSettings, metrics: Mapping[str, Any]) -> list[Block]:
    """Return all scores, beside those of the paper's row and of its tables where the sets are the same."""
    by, name, same = task_in(metrics), reference_row(run.row), comparable(metrics)
    paper, is_text = rows.row(name).paper, by is TRANSLATION
    table2 = paper.table2.get(run.pair)
    lines = _translations(run, metrics, paper) if is_text else _trees(metrics, paper)
    size = f"{paper.params_m} million" if paper.params_m is not None else ""
    flops = number(table2.flops if table2 else None, ".1e")
    lines += [
        ("parameters", "", size, f"{metrics['params']:,}"),
        ("training FLOPs, the paper's way", "", flops, f"{metrics['train_flops_paper']:.2e}"),
        ("training FLOPs, counted", "", "", f"{metrics['train_flops_counted']:.2e}"),
    ]
    found: list[Block] = [Heading("Result")]
    if same:
        found.append(Table(("measure", "set and model", f"the paper's {name}", "this run"), lines))
    else:
        ours = f"{metrics[f'valid_{by.key}_set']}, and {metrics[f'{by.key}_set']}"
        sets = f"The paper's numbers are of {by.papers_set}, and {by.papers_test}; this run's are of {ours}"
        found.append(Paragraph(f"{sets}. That is other text: the paper's are not listed."))
        found.append(Table(("measure", "set and model", "this run"), [(what, of, ours) for what, of, _, ours in lines]))
    chrf = f" chrF's: {metrics['chrf_signature']}." if is_text else ""
    found.append(Paragraph(f"{by.program}'s signature: {metrics[f'{by.key}_signature']}.{chrf}"))
    beside = _table_2 if is_text else _table_4
    return [*found, *(_steps(metrics) if is_text else []), *(beside(run, metrics) if same else [])]


def _with_interval(metrics: Mapping[str, Any], key: str) -> str:
    score, interval = score_and_interval(metrics, key, 2)
    return f"{score} ({interval})"


def _translations(run: RunSettings, metrics: Mapping[str, Any], paper: rows.PaperResults) -> Lines:
    table2 = paper.table2.get(run.pair)
    # Table 3 is English-German only.
    bleu3, ppl = (paper.bleu, paper.ppl) if run.pair == "en-de" else (None, None)
    last, average = f"{metrics['valid_bleu_set']}; last checkpoint", f"{metrics['bleu_set']}; average"
    way, of_table2 = "BLEU, the paper's way", number(table2.bleu if table2 else None, ".1f")
    return [
        ("BLEU, sacreBLEU (95% interval)", average, "", _with_interval(metrics, "bleu")),
        (way, average, of_table2, f"{metrics['bleu_paper_way']:.2f}"),
        ("chrF", average, "", f"{metrics['chrf']:.2f}"),
        ("BLEU, sacreBLEU", last, "", f"{metrics['valid_bleu']:.2f}"),
        (way, last, number(bleu3, ".1f"), f"{metrics['valid_bleu_paper_way']:.2f}"),
        ("perplexity per subword", last, number(ppl), f"{metrics['valid_ppl']:.2f}"),
    ]


def _trees(metrics: Mapping[str, Any], paper: rows.PaperResults) -> Lines:
    lines: Lines = []
    for key, model, printed in (("f1", "average", paper.f1), ("valid_f1", "last checkpoint", None)):
        where = f"{metrics[f'{key}_set']}; {model}"
        lines.append(("F1 (95% interval)", where, number(printed, ".1f"), _with_interval(metrics, key)))
        lines += [(what, where, "", format(metrics[f"{key}_{end}"], form)) for what, end, form in TREE_MEASURES]
    lines.append(("perplexity a symbol", metrics["valid_f1_set"], "", f"{metrics['valid_ppl']:.4f}"))
    return lines


def _steps(metrics: Mapping[str, Any]) -> list[Block]:
    names = metrics["bleu_paper_way_steps"].split("; ")
    keys = ["bleu", *(f"bleu_paper_way_step_{number}" for number in range(2, len(names))), "bleu_paper_way"]
    steps = [(step, f"{metrics[key]:.2f}") for step, key in zip(names, keys, strict=True)]
    heading = Heading("From sacreBLEU to the paper's way of scoring")
    return [heading, Table(("step, on both sides", f"BLEU, {metrics['bleu_set']}"), steps)]


def _table_2(run: RunSettings, metrics: Mapping[str, Any]) -> list[Block]:
    """Return Table 2 for the run's pair with this run in it, and what others reported since."""
    table = rows.table()
    published = [(system.name, system.results.get(run.pair), ".2f") for system in table.table2_systems]
    published += [
        (f"Transformer ({name}), the paper", row.paper.table2.get(run.pair), ".1f") for name, row in table.rows.items()
    ]
    listed = [
        (name, number(result.bleu, form), number(result.flops, ".1e")) for name, result, form in published if result
    ]
    this, bleu = f"this run ({run.row}, {run.corpus}), {metrics['bleu_set']}", f"{metrics['bleu_paper_way']:.2f}"
    listed.append((this, bleu, f"{metrics['train_flops_paper']:.2e}"))
    later = [
        (other.name, number(other.bleu), number(other.bleu_paper_way, ".1f"), other.note)
        for other in table.later_transformers
        if other.pair == run.pair
    ]
    later.append((this, f"{metrics['bleu']:.2f}", bleu, ""))
    return [
        Heading("Beside Table 2"),
        Paragraph("newstest2014 BLEU the paper's way and training cost in FLOPs, as the paper reports them."),
        Table(("model", "BLEU, the paper's way", "cost, FLOPs"), listed, frozenset([len(listed) - 1])),
        Paragraph("Later Transformers on newstest2014, as their authors report them:"),
        Table(("model", "sacreBLEU", "the paper's way", "note"), later, frozenset([len(later) - 1])),
    ]


def _table_4(run: RunSettings, metrics: Mapping[str, Any]) -> list[Block]:
    table = rows.table()
    listed = [(each.name, each.training, number(each.f1, ".1f")) for each in table.table4_parsers]
    listed += [
        (f"Transformer ({name}), the paper", "", number(row.paper.f1, ".1f"))
        for name, row in table.rows.items()
        if row.paper.f1 is not None
    ]
    listed.append((f"this run ({run.row}, {run.corpus}), {metrics['f1_set']}", "", f"{metrics['f1']:.2f}"))
    return [Heading("Beside Table 4"), Table(("parser", "training", "F1"), listed, frozenset([len(listed) - 1]))]
