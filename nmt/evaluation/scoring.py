"""How the output of each task is scored: translations by BLEU and chrF, trees by F1."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from nmt.bootstrap import Comparison
from nmt.evaluation import bleu
from nmt.parsing import evalb
from nmt.task import PARSING, TRANSLATION, task_of

LENGTHS = (10, 20, 30, 40, 50)  # the longest source, in words, of each group of lines; longer ones are the last group
MEASURES = ("recall", "precision", "complete_match", "average_crossing")  # of EVALB's totals
Lines = Sequence[str]


class Output(NamedTuple):
    """What a model made of a set."""

    name: str  # the set's
    references: Path
    path: Path


class Scorer(NamedTuple):
    """The functions that score a task's output."""

    scores: Callable[[Output, Output, str], dict[str, Any]]
    """Of the test and the validation set, in the target language: the scores by their keys in results/scores.json."""
    of_set: Callable[[Output, str], dict[str, Any]]
    """Of a further test set, in the target language: its scores by the keys that the first one's have."""
    compare: Callable[[Lines, Lines, Lines, str], Comparison]
    """Of a baseline's and a system's output, references, and the target language."""
    of_lines: Callable[[Lines, Lines], Sequence[float | None]]  # of outputs and references; None: it cannot be scored
    by_length: Callable[[Lines, Lines, Lines, str], dict[str, tuple[int, float]]]
    """Of sources, outputs, references and the target language: lines and score of each group, the shortest first."""
    counted: tuple[str, str]  # what `by_length` groups by, and what it counts
    groups_words: bool  # whether the output has words of its own, to be grouped by their frequency


def scorer(target: str, tokenize: str | None = None) -> Scorer:
    """Return the functions for a target; `tokenize` names sacreBLEU's tokenizer."""
    task_scorer = _SCORERS[task_of(target)]
    if tokenize is None or task_of(target) is PARSING:
        return task_scorer
    names = ("scores", "of_set", "compare", "by_length")
    functions: dict[str, Any] = {name: partial(getattr(task_scorer, name), tokenize=tokenize) for name in names}
    return task_scorer._replace(**functions)


def ranges(bounds: Sequence[int]) -> list[str]:
    """Return the names of groups of numbers from 0 on, of which each but the last ends at a bound."""
    lows = [0, *(bound + 1 for bound in bounds)]
    named = [f"{low}" if low == high else f"{low:,} to {high:,}" for low, high in zip(lows, bounds, strict=False)]
    return [*named, f"{lows[-1]:,} and more"]


def _bleu_of_set(test: Output, target: str, tokenize: str | None = None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the scores of a test set, and the steps to the paper's way."""
    scores = bleu.score(bleu.read_lines(test.path), bleu.read_lines(test.references), target, tokenize)
    steps, lines = scores.pop("paper_way_steps", []), scores.pop("lines")
    del scores["set"]
    return {**scores, f"{'bleu' if 'bleu' in scores else 'chrf'}_set": f"{test.name}, {lines} lines"}, steps


def _bleu(test: Output, valid: Output, target: str, tokenize: str | None = None) -> dict[str, Any]:
    """Return BLEU of both sets. The test set is scored once, from the average; nothing is selected on it."""
    scores, steps = _bleu_of_set(test, target, tokenize)
    key = "bleu" if "bleu" in scores else "chrf"
    last, of_valid = bleu.read_lines(valid.path), bleu.read_lines(valid.references)
    valid_score, valid_signature = bleu.corpus_score(bleu.headline(target, tokenize), last, of_valid)
    values = {
        **scores,
        f"valid_{key}": valid_score,
        f"valid_{key}_signature": valid_signature,
        f"valid_{key}_set": f"{valid.name}, {len(of_valid)} lines",
        f"valid_{key}_model": "last checkpoint",
    }
    if steps:
        # Only the intermediate steps: the first one's score is `bleu`, the last one's `bleu_paper_way`.
        values |= {f"bleu_paper_way_step_{n}": step["bleu"] for n, step in enumerate(steps[1:-1], start=2)}
        values["bleu_paper_way_steps"] = "; ".join(step["step"] for step in steps)
        values["valid_bleu_paper_way"] = bleu.paper_way(last, of_valid, target)[-1][1]
    return values


def _bleu_by_length(
    sources: Lines, outputs: Lines, references: Lines, target: str, tokenize: str | None = None
) -> dict[str, tuple[int, float]]:
    groups: dict[int, list[tuple[str, str]]] = {}
    for source, *both in zip(sources, outputs, references, strict=True):
        groups.setdefault(bisect_left(LENGTHS, len(source.split())), []).append((both[0], both[1]))
    names, metric = ranges(LENGTHS), bleu.headline(target, tokenize)
    return {
        names[number]: (len(group), bleu.corpus_score(metric, *map(list, zip(*group, strict=True)))[0])
        for number, group in sorted(groups.items())
    }


def _compared(
    baseline: Lines, system: Lines, references: Lines, target: str, tokenize: str | None = None
) -> Comparison:
    return bleu.compare(baseline, system, references, bleu.headline(target, tokenize))


def _f1(output: Output, key: str = "f1") -> dict[str, Any]:
    """Return EVALB's scores of a set, and the share of outputs that had to be repaired to be trees."""
    # A wrongly tagged comma would drop its sentence: the gold tags say what is punctuation.
    scores = evalb.read(output.references, output.path, gold_tags=True)
    path = output.path.with_name(output.path.name + ".repairs.json")
    repairs = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    total = scores.total
    return {
        key: total.f1,
        f"{key}_signature": scores.signature,
        f"{key}_set": f"{output.name}, {total.sentences} lines",
        f"{key}_low": scores.low,
        f"{key}_high": scores.high,
        f"{key}_at_most_{evalb.CUTOFF}_words": scores.short.f1,
        **{f"{key}_{measure}": getattr(total, measure) for measure in MEASURES},
        f"{key}_not_scored": total.errors + total.skipped,
        f"{key}_malformed": repairs.get("malformed trees", 0) / max(1, repairs.get("trees", total.sentences)),
    }


def _f1_of_lines(outputs: Lines, references: Lines) -> list[float | None]:
    trees = evalb.score_lines(references, outputs, gold_tags=True).sentences
    return [
        200 * sentence.matched / (sentence.gold + sentence.parsed) if sentence.gold + sentence.parsed else None
        for sentence in trees
    ]


def _f1_by_length(sources: Lines, outputs: Lines, references: Lines, target: str) -> dict[str, tuple[int, float]]:
    scores = evalb.score_lines(references, outputs, gold_tags=True)
    return {name: (total.sentences, total.f1) for name, total in evalb.by_length(scores.sentences).items()}


_SCORERS = {
    TRANSLATION: Scorer(
        _bleu,
        lambda *given, **options: _bleu_of_set(*given, **options)[0],
        _compared,
        bleu.sentence_chrf,
        _bleu_by_length,
        ("words of the source", "lines"),
        groups_words=True,
    ),
    PARSING: Scorer(
        lambda test, valid, _: _f1(test) | _f1(valid, "valid_f1"),
        lambda test, _: _f1(test),
        lambda *texts: evalb.compare_systems(*texts[:3]),
        _f1_of_lines,
        _f1_by_length,
        ("words", "sentences"),
        groups_words=False,
    ),
}
