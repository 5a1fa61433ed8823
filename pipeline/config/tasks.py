"""The two tasks, translating and parsing: the score by which runs are compared, and the words for what is scored."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from humanize import precisedelta

from nmt.errors import InputError
from pipeline.config.paths import SCORES


class Task(NamedTuple):
    """What a model is trained for, and how that is scored."""

    key: str  # of its score in results/scores.json; other keys there begin with it
    title: str
    program: str
    papers_set: str  # the paper's validation set, as scores.json names it
    papers_test: str
    numbers: tuple[str, ...]  # keys of the numbers that a registered model has
    papers_row: str  # the paper's row that a row of ours is compared with
    verb: str  # what the model does, by the command `wmt <verb>`
    output: str  # what it makes of a line
    unit: str  # what a token of the target is
    of_line: str  # the name of a single line's score


TRANSLATION = Task(
    key="bleu",
    title="BLEU",
    program="sacreBLEU",
    papers_set="newstest2013, 3000 lines",
    papers_test="newstest2014, 3003 lines",
    numbers=("bleu", "bleu_paper_way", "valid_bleu", "valid_bleu_paper_way", "valid_ppl"),
    papers_row="base",
    verb="translate",
    output="translation",
    unit="subword",
    of_line="chrF",
)
PARSING = Task(
    key="f1",
    title="F1",
    program="EVALB",
    papers_set="wsj22, 1700 lines",
    papers_test="wsj23, 2416 lines",
    numbers=("f1", "valid_f1", "f1_malformed", "valid_ppl"),
    papers_row="parse-wsj",
    verb="parse",
    output="parse",
    unit="symbol",
    of_line="F1",
)


def task_in(metrics: Container[str]) -> Task:
    """Return the task whose score a run's metrics hold: parsing where they have its F1, else translation."""
    return PARSING if PARSING.key in metrics else TRANSLATION


def task_of(target: str) -> Task:
    """Return the task of a target language, or of a pair such as `en-de`: parsing for the target `tree`."""
    return PARSING if target.rpartition("-")[2] == "tree" else TRANSLATION


def score_and_interval(scores: Mapping[str, Any], key: str, digits: int = 1) -> tuple[str, str]:
    """Return a score and its 95% interval as text: `26.5` and `25.9 to 27.1`."""
    score, low, high = (f"{scores[name]:.{digits}f}" for name in (key, f"{key}_low", f"{key}_high"))
    return score, f"{low} to {high}"


def duration(seconds: float) -> str:
    """Return a time in its two largest units, as `1 hour and 29 minutes`."""
    finer = {86_400: "hours", 3_600: "minutes"}
    unit = next((name for size, name in finer.items() if seconds >= size), "seconds")
    return precisedelta(seconds, minimum_unit=unit, suppress=["months", "years"], format="%.0f")


def summary(scores: Mapping[str, Any]) -> str:
    """Return the line that tells the test set's score, its interval and how it was computed.

    Raises InputError where results/scores.json, whose content `scores` is, lacks one of these.
    """
    by = task_in(scores)
    try:
        score, interval = score_and_interval(scores, by.key)
        name, signature = scores[f"{by.key}_set"], scores[f"{by.key}_signature"]
    except KeyError as error:
        raise InputError(f"{SCORES} has no {error}: run `dvc repro` to make it again") from error
    return f"{by.title:<7} {score} (95% interval {interval}) on {name}; {by.program}, {signature}"
