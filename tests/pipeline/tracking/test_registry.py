"""The model registry: which version is the best. That one is registered and served, tests/end_to_end shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.config.scorer import BLEU, F1
from pipeline.tracking import registry

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

PAPERS = BLEU.papers_set


def tagged(name: str, number: int, **tags: str) -> ModelVersion:
    from mlflow.entities.model_registry import ModelVersion  # It takes a second, which collecting need not.

    found = ModelVersion(name=name, version=str(number), creation_timestamp=0)
    found.tags.update(tags)
    return found


def version(number: int, bleu: float, valid_set: str, test_bleu: float = 0.0) -> ModelVersion:
    return tagged("wmt-en-de", number, bleu_valid=str(bleu), bleu_valid_set=valid_set, bleu=str(test_bleu))


def test_the_highest_on_newstest2013_is_the_best_whatever_the_test_set_says() -> None:
    versions = [version(1, 25.1, PAPERS, 27.0), version(2, 25.8, PAPERS, 26.0), version(3, 25.3, PAPERS, 29.0)]
    assert registry.best(versions, BLEU, PAPERS) == "2"


def test_an_equal_score_moves_nothing() -> None:
    assert registry.best([version(2, 25.1, PAPERS), version(1, 25.1, PAPERS)], BLEU, PAPERS) == "1"


def test_a_score_on_other_text_never_beats_one_on_newstest2013() -> None:
    versions = [version(1, 25.1, PAPERS), version(2, 86.0, "sampledev, 500 lines")]
    assert registry.best(versions, BLEU, "sampledev, 500 lines") == "1"
    assert registry.best([*versions, version(3, 90.0, "newstest2013, 10 lines")], BLEU, PAPERS) == "1"


def test_without_newstest2013_the_last_runs_set_decides() -> None:
    versions = [
        version(1, 86.0, "sampledev, 500 lines"),
        version(2, 20.0, "dev, 9 lines"),
        version(3, 19.0, "dev, 9 lines"),
    ]
    assert registry.best(versions, BLEU, "dev, 9 lines") == "2"
    assert registry.best(versions, BLEU, "sampledev, 500 lines") == "1"


def test_versions_that_others_made_do_not_take_part() -> None:
    foreign = tagged("wmt-en-de", 4)
    assert registry.best([foreign], BLEU, PAPERS) is None
    assert registry.best([foreign, version(5, 1.0, PAPERS)], BLEU, PAPERS) == "5"


def test_trees_are_compared_by_f1_on_section_22() -> None:
    versions = []
    for number, (score, valid_set) in enumerate(((88.0, "craftdev, 2780 lines"), (91.0, F1.papers_set)), start=1):
        versions.append(tagged("wmt-en-tree", number, f1_valid=str(score), f1_valid_set=valid_set))
    assert registry.best(versions, F1, "craftdev, 2780 lines") == "2"
    assert registry.best(versions[:1], F1, "craftdev, 2780 lines") == "1"


def test_what_a_served_model_needs_names_no_build() -> None:
    assert all("+" not in line and "==" in line for line in registry.requirements())
