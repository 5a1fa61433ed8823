"""The page that compares two runs on the same test set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt.bootstrap import SAMPLES, Comparison
from nmt.config import InputError
from nmt.evaluation import bleu
from nmt.parsing import evalb
from pipeline.config.tasks import task_in
from pipeline.report import figures, scores, sentences
from pipeline.report.page import Block, Heading, Paragraph, Table, Tiles

MEASURES = {
    "bleu": ("BLEU, sacreBLEU", ",.4g"),
    "bleu_paper_way": ("BLEU, the paper's way", ",.4g"),
    "chrf": ("chrF", ",.4g"),
    "f1": ("F1", ",.4g"),
    "valid_bleu": ("BLEU, sacreBLEU, validation set", ",.4g"),
    "valid_f1": ("F1, validation set", ",.4g"),
    "valid_ppl": ("perplexity per {unit}, validation set", ",.4g"),
    "params": ("parameters", ","),
    "updates": ("updates", ","),
    "train_seconds": ("training time in seconds", ",.4g"),
    "train_flops_counted": ("training FLOPs, counted", ",.4g"),
}
"""Numbers of results/scores.json that are listed, what they are, and their format; {unit} is the task's."""


@dataclass(frozen=True)
class Compared:
    """A finished run."""

    name: str
    configuration: Mapping[str, Any]
    """All settings with dotted keys."""
    metrics: Mapping[str, Any]
    lines: Sequence[sentences.Line]
    validation: Path
    """The table of validations that training wrote."""

    @property
    def languages(self) -> tuple[str, str]:
        return self.configuration["data.source"], self.configuration["data.target"]


def difference(first: Compared, second: Compared) -> Comparison:
    """Return by how much the second run is better; raise InputError for runs on different lines or references."""
    texts = [[(line.source, line.reference) for line in run.lines] for run in (first, second)]
    if texts[0] != texts[1] or first.languages != second.languages:
        names = " and ".join(f"{run.name}: {run.metrics[f'{task_in(run.metrics).key}_set']}" for run in (first, second))
        raise InputError(f"the runs were scored on different lines ({names}): compare two runs of one test set")
    compare = bleu.compare if task_in(second.metrics).key == "bleu" else evalb.compare_systems
    baseline, system = ([line.output for line in run.lines] for run in (first, second))
    return compare(baseline, system, [line.reference for line in first.lines])


def blocks(first: Compared, second: Compared, found: Comparison) -> list[Block]:
    """Return the page."""
    runs, names = (first, second), (first.name, second.name)
    by = task_in(second.metrics)
    tiles = [scores.tile(f"{by.title}: {run.name}", run.metrics) for run in runs]
    certain = f"p = {found.p_value:.3f}, paired bootstrap of {SAMPLES:,} resamples"
    tiles.append(("difference", f"{found.difference:+.2f}", certain))
    curves = {run.name: figures.series(run.validation, "valid_loss") for run in runs}
    panel = figures.Panel(f"Cross-entropy of the validation set, nats per {by.unit}", "update", curves)
    measured = [
        (title.format(unit=by.unit), *(format(run.metrics[key], form) for run in runs))
        for key, (title, form) in MEASURES.items()
        if all(key in run.metrics for run in runs)
    ]
    keys = sorted(first.configuration.keys() | second.configuration.keys())
    changed = [
        (key, *(str(run.configuration.get(key, "")) for run in runs))
        for key in keys
        if first.configuration.get(key) != second.configuration.get(key)
    ]
    systems = {run.name: run.lines for run in runs}
    return [
        Heading(f"{second.name} against {first.name}", 1),
        Tiles(tiles),
        figures.chart([panel], "Validation", "validation"),
        Heading(f"{by.output.capitalize()}s side by side"),
        sentences.view(systems, *first.languages),
        Heading("Scores"),
        Table(("measure", *names), measured),
        Heading(f"{by.title} by length", 3),
        sentences.by_length(systems, first.languages[1]),
        Heading("Settings that differ"),
        Table(("key", *names), changed) if changed else Paragraph("None."),
    ]
