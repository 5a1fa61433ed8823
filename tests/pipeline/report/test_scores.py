"""The report's blocks on scored trees."""

from __future__ import annotations

from typing import Any

from pipeline.config.corpora import RunSettings
from pipeline.report import page, scores

SCORES = {"": 91.25, "_low": 90.0, "_high": 92.0, "_at_most_40_words": 92.0, "_recall": 91.0, "_precision": 91.5,
          "_complete_match": 40.0, "_average_crossing": 1.5, "_malformed": 0.015, "_not_scored": 0}  # fmt: skip
METRICS = {
    **{f"{prefix}f1{key}": value for prefix in ("", "valid_") for key, value in SCORES.items()},
    "f1_references": "wsj23", "valid_f1_references": "wsj22",
    "f1_set": "wsj23, 2416 lines", "valid_f1_set": "wsj22, 1700 lines", "f1_signature": "evalb|rules:COLLINS",
    "valid_ppl": 1.1, "params": 1000, "train_flops_paper": 1e18, "train_flops_counted": 2e18,
}  # fmt: skip


def written(corpus: str, **changed: Any) -> str:
    run = RunSettings(row="parse-wsj", pair="en-tree", corpus=corpus, seed=1)
    return page.markdown(scores.results(run, {**METRICS, **changed}, "the paper"), "figures")


def test_f1_stands_beside_the_papers_and_table_4() -> None:
    text = written("wsj")
    assert "| F1 (95% interval) | wsj23, 2416 lines; average | 91.3 | 91.25 (90.00 to 92.00) |" in text
    assert "| outputs that had to be repaired | wsj22, 1700 lines; last checkpoint |  | 1.50% |" in text
    assert "| Dyer et al. (2016) | generative | 93.3 |" in text
    assert "| Transformer (parse-semi), the paper |  | 92.7 |" in text
    assert "| **this run (parse-wsj, wsj), wsj23, 2416 lines** |" in text


def test_f1_of_other_trees_stands_alone() -> None:
    text = written("craft", f1_set="craft, 500 lines", f1_references="5" * 64)
    assert "| F1 (95% interval) | craft, 500 lines; average | 91.25 (90.00 to 92.00) |" in text
    assert "91.3" not in text
    assert "Dyer" not in text
