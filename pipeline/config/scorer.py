"""The score by which runs are compared, BLEU or F1 of trees, and the words for what is scored."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from nmt.config import InputError
from pipeline.common.paths import SCORES


class Scorer(NamedTuple):
    """A score in results/scores.json, whose keys there begin with `key`, and the words for what it scores."""

    key: str
    title: str
    program: str
    papers_set: str
    """The validation set of the paper, as scores.json names it."""
    papers_test: str
    """The test set of the paper."""
    numbers: tuple[str, ...]
    """Keys of the numbers that a registered model has."""
    papers_row: str
    """The paper's row that a row of ours is compared with."""
    verb: str
    """What the model does; its command is `wmt <verb>`."""
    output: str
    """What the model makes of a line."""
    unit: str
    """What a token of the target is."""
    of_line: str
    """The name of a single line's score."""


BLEU = Scorer(
    "bleu",
    "BLEU",
    "sacreBLEU",
    "newstest2013, 3000 lines",
    "newstest2014, 3003 lines",
    ("bleu", "bleu_paper_way", "bleu_valid", "bleu_valid_paper_way", "ppl_valid"),
    papers_row="base",
    verb="translate",
    output="translation",
    unit="subword",
    of_line="chrF",
)
F1 = Scorer(
    "f1",
    "F1",
    "EVALB",
    "wsj22, 1700 lines",
    "wsj23, 2416 lines",
    ("f1", "f1_valid", "f1_malformed", "ppl_valid"),
    papers_row="parse-wsj",
    verb="parse",
    output="parse",
    unit="symbol",
    of_line="F1",
)


def scorer(metrics: Container[str]) -> Scorer:
    """Return which score a run's metrics hold: F1 where they have it, else BLEU."""
    return F1 if F1.key in metrics else BLEU


def scorer_of(target: str) -> Scorer:
    """Return the score of a target language, or of a pair such as `en-de`: F1 for the target `tree`, else BLEU."""
    return F1 if target.rpartition("-")[2] == "tree" else BLEU


def summary(scores: Mapping[str, Any]) -> str:
    """Return the line that tells the test set's score, its interval and how it was computed.

    Raises InputError where results/scores.json, whose content `scores` is, lacks one of these.
    """
    by = scorer(scores)
    try:
        score, low, high, name, signature = (
            scores[by.key + part] for part in ("", "_low", "_high", "_set", "_signature")
        )
    except KeyError as error:
        raise InputError(f"{SCORES} has no {error}: run `dvc repro` to make it again") from error
    return f"{by.title:<7} {score:.1f} (95% interval {low:.1f} to {high:.1f}) on {name}; {by.program}, {signature}"
