"""The lines of the test set with their scores: all of them for the page, and by length and by frequency of words."""

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from nmt.common.files import write_text
from nmt.errors import InputError
from nmt.evaluation import scoring
from nmt.task import task_of
from nmt.text import scripts
from nmt.text.parallel_text import read_lines
from pipeline.report.page import Table, View

EXAMPLES = 5  # sentences to begin with in the page's box
EXTREMES = 3  # best lines, and worst ones, at the top of the report
FREQUENCIES = (0, 1, 4, 9, 99, 999)
"""The most occurrences in the training text of each group of words; more frequent ones are the last group."""


class Line(NamedTuple):
    source: str
    reference: str
    output: str
    score: float | None  # chrF of the line in percent, or F1 of the tree; None for a tree that cannot be scored
    set: str = ""  # the test set's name, if it is not the first one


def scored(source: Path, reference: Path, output: Path, target: str, set_name: str = "") -> list[Line]:
    """Return all lines with their scores. `set_name`: see Line.set."""
    sources, references, outputs = (list(read_lines(path)) for path in (source, reference, output))
    scores = scoring.scorer_of(target).of_lines(outputs, references)
    return [Line(*line, set_name) for line in zip(sources, references, outputs, scores, strict=True)]


def write(lines: Iterable[Line], path: Path) -> None:
    """Write a JSON object a line; the first test set's have no `set`."""
    rows = ({key: value for key, value in line._asdict().items() if (key, value) != ("set", "")} for line in lines)
    write_text(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in rows))


def read(path: Path) -> list[Line]:
    """Return what `write` wrote; raise InputError where the file is missing or damaged."""
    try:
        return [Line(**json.loads(line)) for line in read_lines(path)]
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path} has no lines of a test set ({error}): run `dvc repro` to write it again") from error


def view(systems: Mapping[str, Sequence[Line]], source: str, target: str) -> View:
    """Return the searchable list of all lines, of one system or of several on the same lines."""
    lines = [
        {
            "source": versions[0].source,
            "reference": versions[0].reference,
            "outputs": [line.output for line in versions],
            "scores": [line.score for line in versions],
        }
        for versions in zip(*systems.values(), strict=True)
    ]
    content = {"languages": [source, target], "metric": task_of(target).of_line, "systems": list(systems)}
    table = extremes(next(iter(systems.values())), task_of(target).of_line)
    return View("translations", "translations", content | {"lines": lines}, fallback=[table])


def examples(lines: Sequence[Line], language: str) -> list[str]:
    """Return a few sources of ordinary length, from all parts of the test set; the best translated first."""
    short = [line for line in lines if 5 <= len(scripts.tokens(line.source, language)) <= 12] or list(lines)
    chosen = short[:: max(1, len(short) // EXAMPLES)][:EXAMPLES]
    return [line.source for line in sorted(chosen, key=lambda line: -(line.score or 0.0))]


def extremes(lines: Sequence[Line], metric: str) -> Table:
    """Return the lines with the best scores, of equal ones the longest, and those with the worst."""
    scored = [(line.score, len(line.source), number) for number, line in enumerate(lines) if line.score is not None]
    scored.sort()
    chosen = [number for *_, number in (*scored[: -EXTREMES - 1 : -1], *scored[:EXTREMES])]
    rows = [(f"{number + 1}", f"{lines[number].score:.1f}", *lines[number][:3]) for number in dict.fromkeys(chosen)]
    return Table(("line", metric, "source", "reference", "output"), rows, link="#line=")


def by_length(systems: Mapping[str, Sequence[Line]], languages: tuple[str, str], tokenize: str | None) -> Table:
    """Return the headline score by the number of words of the source, shortest first; no empty groups.

    Of a source without spaces between words, by the number of characters.
    """
    source, target = languages
    scorer, header = scoring.scorer_of(target, tokenize), task_of(target).counted
    if not scripts.has_spaces(source):
        header = ("characters of the source", header[1])
    measured = []
    for lines in systems.values():
        sources = [" ".join(scripts.tokens(line.source, source)) for line in lines]
        measured.append(scorer.by_length(sources, [line.output for line in lines], [line.reference for line in lines]))
    rows = [
        (name, f"{count:,}", *(f"{groups[name][1]:.1f}" for groups in measured))
        for name, (count, _) in measured[0].items()
    ]
    return Table((*header, *systems), rows)


def word_counts(training: Path) -> Counter[str]:
    """Return how often a tokenised text has each of its words; memory grows with the number of different ones."""
    with training.open(encoding="utf-8", newline="\n") as file:
        return Counter(chain.from_iterable(map(str.split, file)))


def by_frequency(lines: Sequence[Line], tokenize: Callable[[str], str], counts: Counter[str]) -> Table:
    """Return how many words of the references are in the translations, by their number in the tokenised training text.

    As compare-mt does (Neubig et al. 2019): a word that occurs m times in the reference and n times in the translation
    of a line matches min(m, n) times.
    """

    def split(text: str) -> Counter[str]:
        return Counter(tokenize(text).split())

    totals: dict[int, Counter[str]] = {}
    for line in lines:
        reference, output = split(line.reference), split(line.output)
        for name, words in (("reference", reference), ("output", output), ("both", reference & output)):
            for word, count in words.items():
                totals.setdefault(bisect_left(FREQUENCIES, counts[word]), Counter())[name] += count
    names, header = scoring.ranges(FREQUENCIES), ("times in the training text", "words", "found in the translation")
    rows = [
        (
            names[number],
            f"{total['reference']:,}",
            *(f"{total['both'] / total[side]:.0%}" if total[side] else "" for side in ("reference", "output")),
        )
        for number, total in sorted(totals.items())
        if total["reference"]
    ]
    return Table((*header, "its words found in the reference"), rows)
