"""The model registry: which version is the best. That one is registered and served, tests/end_to_end shows."""

from pathlib import Path
from typing import Any

import pytest

from nmt.task import TRANSLATION
from pipeline.tracking import registry

PAPERS, DEV = "newstest2013", "0" * 64


def tagged(number: int, **tags: str) -> Any:
    from mlflow.entities.model_registry import ModelVersion  # It takes a second, which collecting need not.

    model_version = ModelVersion(name="wmt-en-de", version=str(number), creation_timestamp=0)
    model_version.tags.update(tags)
    return model_version


def version(number: int, bleu: float, references: str, test_bleu: float = 0.0) -> Any:
    """A version of a set that is called as the paper's, which decides nothing."""
    scores = {"valid_bleu": str(bleu), "bleu": str(test_bleu)}
    return tagged(number, **scores, valid_bleu_references=references, valid_bleu_set="newstest2013, 3000 lines")


@pytest.mark.parametrize(
    ("versions", "valid_set", "best"),
    [
        ([(1, 25.1, PAPERS, 27.0), (2, 25.8, PAPERS, 26.0), (3, 25.3, PAPERS, 29.0)], PAPERS, "2"),
        ([(2, 25.1, PAPERS), (1, 25.1, PAPERS)], PAPERS, "1"),
        ([(1, 25.1, PAPERS), (2, 86.0, DEV), (3, 90.0, "another")], DEV, "1"),
        ([(1, 86.0, DEV), (2, 20.0, "dev, 9 lines"), (3, 19.0, "dev, 9 lines")], "dev, 9 lines", "2"),
        ([(1, 86.0, DEV), (2, 20.0, "dev, 9 lines"), (3, 19.0, "dev, 9 lines")], DEV, "1"),
    ],
    ids=["not the test set's", "of equals the first", "newstest2013 before others", "the last run's set", "its own"],
)
def test_the_best_has_the_highest_score_on_one_validation_set(versions: Any, valid_set: str, best: str) -> None:
    assert registry.best([version(*fields) for fields in versions], TRANSLATION, valid_set) == best


def test_versions_that_others_made_do_not_take_part() -> None:
    foreign = tagged(4)
    assert registry.best([foreign], TRANSLATION, PAPERS) is None
    assert registry.best([foreign, version(5, 1.0, PAPERS)], TRANSLATION, PAPERS) == "5"


def test_what_a_served_model_needs_names_no_build() -> None:
    needed = registry.model_content(Path(), {"beam": 4, "alpha": 0.6})["pip_requirements"]
    assert all("+" not in line and "==" in line for line in needed)
