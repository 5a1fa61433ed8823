"""The page that compares two runs on the same test set."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from nmt.bootstrap import SAMPLES, Comparison
from nmt.errors import InputError
from nmt.evaluation import scoring
from nmt.task import task_in
from pipeline.report import figures, scores, sentences
from pipeline.report.chapters import NOT_COMPARED
from pipeline.report.page import Bars, Block, Heading, Paragraph, Table, Tiles

CAUSES = ("run.row", "training.updates", "model.", "training.", "run.corpus", "preparation.", "subwords.", "binning.",
          "averaging.", "search.", "run.seed")  # fmt: skip
"""What the keys of settings begin with, by how much they explain a difference."""
NO_CAUSES = {*NOT_COMPARED, "training.checkpoint_every"}
"""The seed of `run.seed`, and what only says what is kept of a training."""
NAMED = 4  # settings that the verdict names
PHRASES = 8  # n-grams that are listed as won, and as lost
GAINS = (-50, -20, -5, 0, 5, 20, 50)  # bounds of the groups of the lines' differences; equal lines are in none


@dataclass(frozen=True)
class Compared:
    name: str
    configuration: Mapping[str, Any]  # all settings with dotted keys
    metrics: Mapping[str, Any]
    lines: Sequence[sentences.Line]
    validation: Path  # the table of validations that training wrote
    report: Path  # the run's own page, which may be missing

    @property
    def languages(self) -> tuple[str, str]:
        return self.configuration["data.source"], self.configuration["data.target"]


def shared(first: Sequence[Compared], second: Sequence[Compared]) -> list[tuple[Compared, Compared]]:
    """Return the test sets that two runs share, in the second's order; raise InputError where they share none."""

    def text(run: Compared) -> tuple[object, ...]:
        return run.languages, [(line.source, line.reference) for line in run.lines]

    if pairs := [(one, other) for other in second for one in first if text(one) == text(other)]:
        return pairs
    names = " and ".join(f"{run.name}: {set_of(run)}" for run in (first[0], second[0]))
    raise InputError(f"the runs were scored on different lines ({names}): compare two runs of one test set")


def set_of(run: Compared) -> str:
    return str(run.metrics[f"{task_in(run.metrics).key}_set"])


def difference(first: Compared, second: Compared) -> Comparison:
    """Return by how much the second run is better on the lines that both translated."""
    baseline, system = ([line.output for line in run.lines] for run in (first, second))
    tokenizers = [run.configuration.get("scoring.tokenize") for run in (first, second)]
    if tokenizers[0] != tokenizers[1]:
        raise InputError(f"the runs were scored with scoring.tokenize {tokenizers[0]} and {tokenizers[1]}: set one")
    references = [line.reference for line in first.lines]
    return scoring.scorer_of(second.languages[1], tokenizers[1]).compare(baseline, system, references)


def by_set(first: Compared, second: Compared, comparison: Comparison) -> tuple[str, ...]:
    """Return a shared set's name, the score of each run, the difference and its p as text."""
    values = (f"{run.metrics[task_in(run.metrics).key]:.2f}" for run in (first, second))
    return set_of(second), *values, f"{comparison.difference:+z.2f}", f"{comparison.p_value:.3f}"


def verdict(name: str, changed: Sequence[Sequence[str]], gain: Comparison, title: str) -> str:
    """Return the result as a sentence: `updates 1400 instead of 200: +88.9 BLEU (p = 0.001, over sentences)`."""
    known = {row[0]: row for row in changed if row[0] not in NO_CAUSES}
    causes = list({key: row for cause in CAUSES for key, row in known.items() if key.startswith(cause)}.values())
    what = ", ".join(f"{key.rpartition('.')[2]} {ours} instead of {theirs}" for key, theirs, ours in causes[:NAMED])
    more = f", and {len(causes) - NAMED} more" if len(causes) > NAMED else ""
    p = f"p = {gain.p_value:.3f}, over sentences, not over seeds"
    return f"{what or name}{more}: {gain.difference:+z.1f} {title} ({p})"


def line_differences(first: Sequence[sentences.Line], second: Sequence[sentences.Line], metric: str) -> list[Block]:
    """Return how many lines of the second run are better, worse and equal, and a histogram of the differences."""
    pairs = [(one.score, other.score) for one, other in zip(first, second, strict=True)]
    gains = [other - one for one, other in pairs if one is not None and other is not None]
    counts = Counter(bisect_left(GAINS, gain) for gain in gains if gain)
    names = [f"up to {GAINS[0]}", *(f"{low} to {high}" for low, high in pairwise(GAINS)), f"more than {GAINS[-1]}"]
    better, worse = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    counted = f"{better:,} lines are better, {worse:,} are worse, {len(gains) - better - worse:,} score the same."
    bars = [(name, counts[group], f"{counts[group]:,}") for group, name in enumerate(names)]
    return [Paragraph(counted), Bars((f"difference in {metric}", "lines"), bars)]


def phrases(first: Sequence[sentences.Line], second: Sequence[sentences.Line]) -> list[tuple[str, str]]:
    """Return the n-grams of one to three words that the second run has right more often, and less often."""

    def ngrams(text: str) -> Counter[str]:
        words = text.split()
        return Counter(" ".join(words[at : at + n]) for n in (1, 2, 3) for at in range(len(words) - n + 1))

    won: Counter[str] = Counter()
    for sign, lines in ((-1, first), (1, second)):
        for line in lines:
            for phrase, count in (ngrams(line.reference) & ngrams(line.output)).items():
                won[phrase] += sign * count
    ranked = won.most_common()
    return [(phrase, f"{count:+,}") for phrase, count in dict(ranked[:PHRASES] + ranked[-PHRASES:]).items() if count]


def blocks(
    first: Compared,
    second: Compared,
    gain: Comparison,
    reports: Sequence[tuple[str, str]] = (),
    sets: Sequence[tuple[str, ...]] = (),
) -> list[Block]:
    """Return the page, of the first test set that the runs share.

    `reports`: files beside it, and whose reports they are; `sets`: rows of `by_set`, where a run has several test sets.
    """
    runs, names = (first, second), (first.name, second.name)
    task = task_in(second.metrics)
    tiles = [scores.tile(f"{task.title}: {run.name}", run.metrics) for run in runs]
    tiles.append(("difference", f"{gain.difference:+z.2f}", f"paired bootstrap of {SAMPLES:,} resamples"))
    curves = {run.name: figures.series(run.validation, "valid_loss") for run in runs}
    panel = figures.Panel(f"Cross-entropy of the validation set, nats per {task.unit}", "update", curves)
    measured = [
        (key, *(f"{number:,}" if isinstance(number := run.metrics[key], int) else f"{number:,.6g}" for run in runs))
        for key, value in first.metrics.items()
        if isinstance(value, int | float) and isinstance(second.metrics.get(key), int | float)
    ]
    changed = [
        (key, *(str(run.configuration.get(key, "")) for run in runs))
        for key in sorted(first.configuration.keys() | second.configuration.keys())
        if first.configuration.get(key) != second.configuration.get(key)
    ]
    systems = {run.name: run.lines for run in runs}
    return [
        Heading(f"{second.name} against {first.name}", 1),
        Paragraph(verdict(second.name, changed, gain, task.title)),
        Tiles(tiles),
        *([Table(("test set", *names, "difference", "p"), sets)] if sets else []),
        *([Table(("report", "of run"), reports, link="./")] if reports else []),
        Table(("setting", *names), changed) if changed else Paragraph("The settings are the same."),
        *line_differences(first.lines, second.lines, task.of_line),
        Heading("Words and phrases"),
        Table(("in the reference", f"right in {second.name}, minus {first.name}"), phrases(first.lines, second.lines)),
        Heading("Validation"),
        figures.chart([panel], "Validation", "validation"),
        Heading(f"{task.output.capitalize()}s side by side"),
        sentences.view(systems, *first.languages),
        Heading("Scores"),
        Table(("results/scores.json", *names), measured),
        Heading(f"{task.title} by length", 3),
        sentences.by_length(systems, first.languages, second.configuration.get("scoring.tokenize")),
    ]
