"""The page that compares two runs on the same test set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt.config import InputError
from nmt.evaluation import bleu, evalb, paired
from pipeline.config.scorer import scorer
from pipeline.reporting import figures, sentences
from pipeline.reporting.page import Block, Heading, Paragraph, Table, Tiles

MEASURES = {
    "bleu": "BLEU, sacreBLEU",
    "bleu_paper_way": "BLEU, the paper's way",
    "chrf": "chrF",
    "f1": "F1",
    "bleu_valid": "BLEU, sacreBLEU, validation set",
    "f1_valid": "F1, validation set",
    "ppl_valid": "perplexity per {unit}, validation set",
    "params": "parameters",
    "updates": "updates",
    "train_seconds": "training time in seconds",
    "train_flops_counted": "training FLOPs, counted",
}
"""Numbers of results/scores.json that are listed, and what they are; {unit} is the scorer's."""


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
        """Return source and target."""
        return self.configuration["data.source"], self.configuration["data.target"]


@dataclass(frozen=True)
class Difference:
    """The second run's score less the first's."""

    title: str
    value: float
    p_value: float
    """By paired bootstrap resampling."""

    def __str__(self) -> str:
        return f"{self.value:+.2f} {self.title}, p = {self.p_value:.3f} (paired bootstrap)"


def check(first: Compared, second: Compared) -> None:
    """Raise InputError unless both runs translated the same lines with the same references."""
    texts = [[(line.source, line.reference) for line in run.lines] for run in (first, second)]
    if texts[0] != texts[1] or first.languages != second.languages:
        names = " and ".join(f"{run.name}: {run.metrics[f'{scorer(run.metrics).key}_set']}" for run in (first, second))
        raise InputError(f"the runs were scored on different lines ({names}): compare two runs of one test set")


def difference(first: Compared, second: Compared) -> Difference:
    """Return by how much the second run is better."""
    by = scorer(second.metrics)
    compare = bleu.compare if by.key == "bleu" else paired.compare_trees
    baseline, system = ([line.output for line in run.lines] for run in (first, second))
    found = compare(baseline, system, [line.reference for line in first.lines])
    return Difference(by.title, found.difference, found.p_value)


def blocks(first: Compared, second: Compared, found: Difference) -> list[Block]:
    """Return the page."""
    runs, names = (first, second), (first.name, second.name)
    by = scorer(second.metrics)
    tiles = [(f"{by.title}: {run.name}", f"{run.metrics[by.key]:.1f}", _interval(run, by.key)) for run in runs]
    certain = f"p = {found.p_value:.3f}, paired bootstrap of {bleu.SAMPLES:,} resamples"
    tiles.append(("difference", f"{found.value:+.2f}", certain))
    curves = {run.name: figures.series(run.validation, "valid_loss") for run in runs}
    panel = figures.Panel(f"Cross-entropy of the validation set, nats per {by.unit}", "update", curves)
    measured = [
        (title.format(unit=by.unit), *(_number(run.metrics[key]) for run in runs))
        for key, title in MEASURES.items()
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
        *_by_length(systems, is_text=by.key == "bleu"),
        Heading("Settings that differ"),
        Table(("key", *names), changed) if changed else Paragraph("None."),
    ]


def _interval(run: Compared, key: str) -> str:
    low, high, name = (run.metrics[f"{key}_{part}"] for part in ("low", "high", "set"))
    return f"{low:.1f} to {high:.1f} (95%); {name}"


def _number(value: float) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"


def _by_length(systems: Mapping[str, Sequence[sentences.Line]], *, is_text: bool) -> list[Block]:
    """Return BLEU, or F1 of trees, by the number of words of the source."""
    groups: list[dict[str, tuple[int, float]]] = []
    for lines in systems.values():
        if is_text:
            texts = sentences.groups_by_length(lines).items()
            groups.append({name: (len(group), sentences.corpus_bleu(group)) for name, group in texts})
        else:
            gold, parsed = [line.reference for line in lines], [line.output for line in lines]
            trees = evalb.by_length(evalb.score_lines(gold, parsed, gold_tags=True).sentences).items()
            groups.append({name: (total.sentences, total.f1) for name, total in trees})
    rows = [
        (name, f"{count:,}", *(f"{each[name][1]:.1f}" for each in groups)) for name, (count, _) in groups[0].items()
    ]
    header = ("words of the source", "lines") if is_text else ("words", "sentences")
    return [Heading(f"{'BLEU' if is_text else 'F1'} by length", 3), Table((*header, *systems), rows)]
