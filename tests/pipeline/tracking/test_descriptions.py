"""What MLflow's pages say of translation and of parsing, in the words of the scorer."""

from __future__ import annotations

import pytest

from pipeline.config.scorer import BLEU, F1, Scorer, scorer_of
from pipeline.tracking import descriptions


@pytest.mark.parametrize(
    ("pair", "by", "does", "unit"),
    [
        ("en-fr", BLEU, "Translates English into French.", "subword"),
        ("en-tree", F1, "Parses English into constituency trees.", "symbol"),
    ],
)
def test_a_pair_has_the_words_of_its_score(pair: str, by: Scorer, does: str, unit: str) -> None:
    assert scorer_of(pair) is scorer_of(pair.split("-")[1]) is by
    model = descriptions.of_model(f"wmt-{pair}", pair)
    assert model.startswith(does)
    assert f"the highest {by.title} on the validation set, never" in model
    run = descriptions.of_run({"settings": {}, "tags": {}}, {}, {by.key: 90.04, "ppl_valid": 1.5})
    assert run.startswith(
        f"{by.title} 90.0 on the test set, by {by.program}. Perplexity per {unit} of the validation set"
    )
