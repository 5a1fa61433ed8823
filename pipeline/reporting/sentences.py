"""The lines of the test set with their scores: all of them for the page, and by length and by frequency of words."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nmt.common.files import writing
from nmt.config import InputError
from nmt.evaluation import bleu, evalb
from nmt.text.codec import Tokenizer
from nmt.text.parallel_text import read_lines
from pipeline.config.scorer import scorer_of
from pipeline.reporting.page import Block, Heading, Paragraph, Table, View

EXAMPLES = 5
"""Lines of the test set in Markdown."""
LENGTHS = (10, 20, 30, 40, 50)
"""The longest source, in words, of each group of lines; longer ones are the last group."""
FREQUENCIES = (0, 1, 4, 9, 99, 999)
"""The most occurrences in the training text of each group of words; more frequent ones are the last group."""
BLOCK = 1 << 24
"""Characters of the training text that are counted at a time."""


@dataclass(frozen=True)
class Line:
    """A line of the test set."""

    source: str
    reference: str
    output: str
    score: float | None
    """chrF of the line in percent, or F1 of the tree; None for a tree that cannot be scored."""


def scored(source: Path, reference: Path, output: Path, target: str) -> list[Line]:
    """Return all lines with their scores; raise InputError where the files have different numbers of lines."""
    paths = (source, reference, output)
    sources, references, outputs = (list(read_lines(path)) for path in paths)
    if not len(sources) == len(references) == len(outputs):
        names = ", ".join(map(str, paths))
        raise InputError(f"{names} have different numbers of lines: run `dvc repro` to translate the test set again")
    scores = _tree_scores(reference, output) if target == "tree" else bleu.sentence_chrf(outputs, references)
    return [Line(*fields) for fields in zip(sources, references, outputs, scores, strict=True)]


def _tree_scores(gold: Path, parsed: Path) -> list[float | None]:
    found = evalb.read(gold, parsed, gold_tags=True).sentences
    return [200 * one.matched / (one.gold + one.parsed) if one.gold + one.parsed else None for one in found]


def write(lines: Iterable[Line], path: Path) -> None:
    """Write a JSON object a line."""
    with writing(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(json.dumps(asdict(line), ensure_ascii=False) + "\n" for line in lines)


def read(path: Path) -> list[Line]:
    """Return what `write` wrote; raise InputError where the file is missing or damaged."""
    try:
        return [Line(**json.loads(line)) for line in read_lines(path)]
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path} has no lines of a test set ({error}): run `dvc repro` to write it again") from error


def view(systems: Mapping[str, Sequence[Line]], source: str, target: str) -> View:
    """Return the searchable list of all lines, of one system or of several on the same lines."""
    first = next(iter(systems.values()))
    lines = [
        {
            "source": line.source,
            "reference": line.reference,
            "outputs": [each[number].output for each in systems.values()],
            "scores": [each[number].score for each in systems.values()],
        }
        for number, line in enumerate(first)
    ]
    rows = [
        (line.source, line.reference, *(each[number].output for each in systems.values()))
        for number, line in enumerate(first[:EXAMPLES])
    ]
    table = Table(("source", "reference", *systems), rows)
    content: dict[str, Any] = {"languages": [source, target], "metric": scorer_of(target).of_line}
    content |= {"systems": list(systems), "lines": lines}
    return View(
        "translations", "translations", content, fallback=[Paragraph("The first lines of the test set:"), table]
    )


def _group(bounds: Sequence[int], value: int) -> int:
    """Return the number of the group whose upper bound is the first of at least `value`."""
    return next((number for number, high in enumerate(bounds) if value <= high), len(bounds))


def _names(bounds: Sequence[int], least: int) -> list[str]:
    lows = [least, *(bound + 1 for bound in bounds)]
    named = [f"{low}" if low == high else f"{low:,} to {high:,}" for low, high in zip(lows, bounds, strict=False)]
    return [*named, f"{lows[-1]:,} and more"]


def by_length(lines: Sequence[Line]) -> list[Block]:
    """Return BLEU by the number of words of the source."""
    groups = groups_by_length(lines).items()
    rows = [(name, f"{len(group):,}", f"{corpus_bleu(group):.1f}") for name, group in groups]
    return [Heading("By length", 3), Table(("words of the source", "lines", "BLEU"), rows)]


def groups_by_length(lines: Iterable[Line]) -> dict[str, list[Line]]:
    """Return lines by the number of words of their source, shortest first; empty groups are left out."""
    groups: dict[int, list[Line]] = {}
    for line in lines:
        groups.setdefault(_group(LENGTHS, len(line.source.split())), []).append(line)
    names = _names(LENGTHS, 0)
    return {names[number]: group for number, group in sorted(groups.items())}


def corpus_bleu(lines: Sequence[Line]) -> float:
    """Return the sacreBLEU of some lines in percent."""
    return bleu.sacrebleu([line.output for line in lines], [line.reference for line in lines])[0]


def trees_by_length(gold: Path, parsed: Path) -> list[Block]:
    """Return F1 by the number of words of the sentence."""
    found = evalb.by_length(evalb.read(gold, parsed, gold_tags=True).sentences)
    rows = [(name, f"{total.sentences:,}", f"{total.f1:.1f}") for name, total in found.items()]
    return [Heading("By length", 3), Table(("words", "sentences", "F1"), rows)]


def count_words(training: Path) -> Counter[str]:
    """Count the words of a tokenised file. Memory grows with the number of different words."""
    counts: Counter[str] = Counter()
    with training.open(encoding="utf-8", newline="\n") as file:
        while block := file.readlines(BLOCK):
            counts.update("".join(block).split())
    return counts


def by_frequency(lines: Sequence[Line], tokenizer: Tokenizer, counts: Mapping[str, int]) -> list[Block]:
    """Return how many words of the references are in the translations, by their number in the training text.

    As compare-mt does (Neubig et al. 2019): a word that occurs m times in the reference and n times in the translation
    of a line matches min(m, n) times.
    """

    def split(text: str) -> Counter[str]:
        return Counter(tokenizer.tokenize(tokenizer.normalize(text)).split())

    totals: dict[int, Counter[str]] = {}
    for line in lines:
        reference, output = split(line.reference), split(line.output)
        for name, words in (("reference", reference), ("output", output), ("both", reference & output)):
            for word, count in words.items():
                totals.setdefault(_group(FREQUENCIES, counts.get(word, 0)), Counter())[name] += count
    names, percent = _names(FREQUENCIES, 0), _percent
    rows = [
        (names[number], f"{total['reference']:,}", percent(total, "reference"), percent(total, "output"))
        for number, total in sorted(totals.items())
    ]
    return [
        Heading("By frequency of words", 3),
        Paragraph("Words of the references, grouped by how often the training text has them."),
        Table(("times in the training text", "words", "found in the translation", "right where translated so"), rows),
    ]


def _percent(total: Mapping[str, int], side: str) -> str:
    return f"{total['both'] / total[side]:.0%}" if total[side] else ""
