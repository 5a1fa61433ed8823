"""The scorers: of translations by BLEU and chrF, of trees by F1. The target language decides which (`scorer_of`)."""

import json
from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from nmt.bootstrap import Comparison, compare
from nmt.evaluation import bleu
from nmt.evaluation.bleu import Lines
from nmt.parsing import evalb
from nmt.task import PARSING, task_in, task_of

LENGTHS = (10, 20, 30, 40, 50)  # the longest source, in words, of each group of lines; longer ones are the last group
MEASURES = ("recall", "precision", "complete_match", "average_crossing")  # of EVALB's totals


class Output(NamedTuple):
    """What a model made of a set."""

    name: str  # the set's
    references: Path
    path: Path


def ranges(bounds: Sequence[int]) -> list[str]:
    """Return the names of groups of numbers from 0 on, of which each but the last ends at a bound."""
    lows = [0, *(bound + 1 for bound in bounds)]
    named = [f"{low}" if low == high else f"{low:,} to {high:,}" for low, high in zip(lows, bounds, strict=False)]
    return [*named, f"{lows[-1]:,} and more"]


class TranslationScorer:
    """BLEU, or chrF where the language's segmenter is missing. `tokenize` names sacreBLEU's tokenizer."""

    def __init__(self, target: str, tokenize: str | None = None) -> None:
        self.target, self.tokenize = target, tokenize

    @cached_property
    def metric(self) -> BLEU | CHRF:
        return bleu.headline(self.target, self.tokenize)

    def scores(self, test: Output, valid: Output) -> dict[str, Any]:
        """Return the scores of the test and the validation set by their keys in results/scores.json.

        The test set is scored once, from the average; nothing is selected on it.
        """
        values, steps = self._scores_and_steps(test)
        key = task_in(values).key
        last, of_valid = bleu.read_lines(valid.path), bleu.read_lines(valid.references)
        valid_score, valid_signature = bleu.corpus_score(self.metric, last, of_valid)
        values |= {
            f"valid_{key}": valid_score,
            f"valid_{key}_signature": valid_signature,
            f"valid_{key}_set": f"{valid.name}, {len(of_valid)} lines",
            f"valid_{key}_model": "last checkpoint",
        }
        if steps:
            # Only the intermediate steps: the first one's score is `bleu`, the last one's `bleu_paper_way`.
            values |= {f"bleu_paper_way_step_{n}": step["bleu"] for n, step in enumerate(steps[1:-1], start=2)}
            values["bleu_paper_way_steps"] = "; ".join(step["step"] for step in steps)
            values["valid_bleu_paper_way"] = bleu.paper_way(last, of_valid, self.target, self.tokenize)[-1][1]
        return values

    def scores_of_set(self, output: Output) -> dict[str, Any]:
        """Return the scores of a further test set by the keys that the first one's have."""
        return self._scores_and_steps(output)[0]

    def _scores_and_steps(self, test: Output) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the scores of a test set, and the steps to the paper's way."""
        values = bleu.score(bleu.read_lines(test.path), bleu.read_lines(test.references), self.target, self.tokenize)
        steps, lines = values.pop("paper_way_steps", []), values.pop("lines")
        del values["set"]
        return {**values, f"{task_in(values).key}_set": f"{test.name}, {lines} lines"}, steps

    def compare(self, baseline: Lines, system: Lines, references: Lines) -> Comparison:
        """Compare two systems' output by paired bootstrap resampling."""
        return bleu.compare(baseline, system, references, self.metric)

    def of_lines(self, outputs: Lines, references: Lines) -> Sequence[float | None]:
        """Return the score of each line in percent; None if it cannot be scored."""
        chrf, pairs = CHRF(), zip(outputs, references, strict=True)
        return [float(chrf.sentence_score(output, [reference]).score) for output, reference in pairs]

    def by_length(self, sources: Lines, outputs: Lines, references: Lines) -> dict[str, tuple[int, float]]:
        """Return number of lines and score of each group of lines by length, the shortest first; no empty groups."""
        groups: dict[int, list[tuple[str, str]]] = {}
        for source, *both in zip(sources, outputs, references, strict=True):
            groups.setdefault(bisect_left(LENGTHS, len(source.split())), []).append((both[0], both[1]))
        names = ranges(LENGTHS)
        return {
            names[number]: (len(group), bleu.corpus_score(self.metric, *map(list, zip(*group, strict=True)))[0])
            for number, group in sorted(groups.items())
        }


class TreeScorer:
    """EVALB's F1, by the same methods."""

    def scores(self, test: Output, valid: Output) -> dict[str, Any]:
        return self.scores_of_set(test) | self.scores_of_set(valid, "valid_f1")

    def scores_of_set(self, output: Output, key: str = "f1") -> dict[str, Any]:
        """Return EVALB's scores of a set, and the share of outputs that had to be repaired to be trees."""
        # A wrongly tagged comma would drop its sentence: the gold tags say what is punctuation.
        evaluated = evalb.read(output.references, output.path, gold_tags=True)
        path = output.path.with_name(output.path.name + ".repairs.json")
        repairs = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        total = evaluated.total
        return {
            key: total.f1,
            f"{key}_signature": evaluated.signature,
            f"{key}_set": f"{output.name}, {total.sentences} lines",
            f"{key}_low": evaluated.low,
            f"{key}_high": evaluated.high,
            f"{key}_at_most_{evalb.CUTOFF}_words": evaluated.short.f1,
            **{f"{key}_{measure}": getattr(total, measure) for measure in MEASURES},
            f"{key}_not_scored": total.errors + total.skipped,
            f"{key}_malformed": repairs.get("malformed trees", 0) / max(1, repairs.get("trees", total.sentences)),
        }

    def compare(self, baseline: Lines, system: Lines, references: Lines) -> Comparison:
        of_baseline, of_system = (evalb.statistics(_trees(lines, references)) for lines in (baseline, system))
        return compare(of_baseline, of_system, evalb.f1_of)

    def of_lines(self, outputs: Lines, references: Lines) -> Sequence[float | None]:
        return [evalb.f1_of(sums) if sums[1] else None for sums in evalb.statistics(_trees(outputs, references))]

    def by_length(self, sources: Lines, outputs: Lines, references: Lines) -> dict[str, tuple[int, float]]:
        groups = evalb.by_length(_trees(outputs, references))
        return {name: (total.sentences, total.f1) for name, total in groups.items()}


def _trees(outputs: Lines, references: Lines) -> list[evalb.Sentence]:
    return evalb.score_lines(references, outputs, gold_tags=True).sentences


def scorer_of(target: str, tokenize: str | None = None) -> TranslationScorer | TreeScorer:
    """Return the scorer of a target language; `tokenize` names sacreBLEU's tokenizer of translations."""
    return TreeScorer() if task_of(target) is PARSING else TranslationScorer(target, tokenize)
