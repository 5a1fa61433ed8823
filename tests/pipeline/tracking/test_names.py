"""Names of numbers in MLflow: one prefix for each group of charts, and one name for each number."""

from __future__ import annotations

import pytest

from pipeline.tracking import names


def test_measurements_of_an_update_are_curves_of_training_or_validation() -> None:
    assert names.of_history({"loss": 2.0, "tokens_per_second": 9.0, "seconds": 1800.0}) == {
        "train/loss": 2.0,
        "train/tokens_per_second": 9.0,
        "train/hours": 0.5,
    }
    assert names.of_history({"valid_loss": 2.0, "valid_ppl": 7.4, "seconds": 1800.0}) == {
        "valid/loss": 2.0,
        "valid/ppl": 7.4,
    }


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("bleu", "test/bleu"),
        ("bleu_low", "test/bleu_low"),
        ("chrf", "test/chrf"),
        ("f1_malformed", "test/f1_malformed"),
        ("bleu_valid", "valid/bleu"),
        ("bleu_valid_paper_way", "valid/bleu_paper_way"),
        ("f1_valid_recall", "valid/f1_recall"),
        ("train_flops_paper", "train/flops_paper"),
        ("model_flops_utilisation", "train/model_flops_utilisation"),
        # The last points of the curves valid/ppl and train/hours.
        ("ppl_valid", None),
        ("train_seconds", None),
        # Parameters.
        ("params", None),
        ("updates", None),
        # Constants of the device, in scores.json.
        ("sustained_flops", None),
        ("devices", None),
    ],
)
def test_scores_are_of_the_test_set_the_validation_set_or_the_cost(key: str, name: str | None) -> None:
    assert names.of_score(key) == name


@pytest.mark.parametrize(
    ("stage", "key", "name"),
    [
        ("tokenize", "seconds", "seconds/tokenize"),
        ("decode", "decode_test_seconds", "seconds/decode_test"),
        ("tokenize", "pairs_kept", "data/pairs_kept"),
        ("binarize", "pairs", "data/pairs"),
        ("tokenize", "dropped_ratio", None),
        ("download", "raw_pairs.train.sample", None),
        ("train", "pairs", "train/pairs"),
        ("train", "flops_counted", "train/flops_counted"),
        ("train", "loss_valid", None),
        ("train", "params", None),
        ("train", "train_seconds", None),
    ],
)
def test_what_a_stage_measures_is_a_time_a_count_or_a_sum_of_training(stage: str, key: str, name: str | None) -> None:
    assert names.of_stage(stage, key, trains=stage == "train") == name
