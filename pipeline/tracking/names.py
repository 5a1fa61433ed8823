"""Names of a run's numbers in MLflow, which draws numbers with the same prefix as one group of charts.

`train/`: curves and cost of training; `valid/` and `test/`: scores of the two sets; `data/`: counts of the texts;
`seconds/`: times of the stages; `system/`: the load of the machine. A number that has a curve has no other name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

SIZES = {"params": "parameters", "vocabulary": "vocabulary", "updates": "updates"}
"""Scores that describe the run and measure nothing, and their names as parameters of the MLflow run."""
LAST_POINTS = ("ppl_valid", "loss_valid", "train_seconds")
"""Numbers that are the last point of a curve: valid/ppl, valid/loss, train/hours."""
OF_TRAINING = ("pairs", "source_tokens", "target_tokens", "resumes", "flops_counted", "flops_paper")
"""Numbers in the summary of a training that no other name has."""
OF_DATA = (
    "pairs_raw",
    "pairs_kept",
    "pairs",
    "source_tokens",
    "target_tokens",
    "out_of_vocabulary_valid",
    "unknown_symbols_valid",
)
"""Counts of the texts that runs are compared by. What was dropped, and why, is in the files of the stages."""


def of_history(values: Mapping[str, float]) -> dict[str, float]:
    """Return what training measured at an update by its names in MLflow; its seconds as hours.

    A validation has its seconds, too. They have no name: an interval may end at the same update.
    """
    named: dict[str, float] = {}
    validation = any(key.startswith("valid_") for key in values)
    for key, value in values.items():
        if key == "seconds":
            if not validation:
                named["train/hours"] = value / 3600
        elif key.startswith("valid_"):
            named[f"valid/{key.removeprefix('valid_')}"] = value
        else:
            named[f"train/{key}"] = value
    return named


def of_score(key: str) -> str | None:
    """Return the name of a number of results/scores.json; None for a constant, or for the last point of a curve."""
    if key in SIZES or key in LAST_POINTS:
        return None
    if "_valid" in key:
        return f"valid/{key.replace('_valid', '', 1)}"
    if key.startswith(("bleu", "chrf", "f1")):
        return f"test/{key}"
    return f"train/{key.removeprefix('train_')}" if "flops_" in key else None


def of_stage(stage: str, key: str, *, trains: bool) -> str | None:
    """Return the name of a number that a stage measured; None where it has another name or is in the artifacts only.

    `trains`: whether it is the stage that trains the model.
    """
    if key == "seconds":
        return f"seconds/{stage}"
    if trains:
        return f"train/{key}" if key in OF_TRAINING else None
    if key.endswith("_seconds"):
        return f"seconds/{key.removesuffix('_seconds')}"
    return f"data/{key}" if key in OF_DATA else None


def clean(key: str) -> str:
    """Return a name as MLflow allows it."""
    return re.sub(r"[^\w.\-/ ]", "_", key)[:250]
