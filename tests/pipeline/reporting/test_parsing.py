"""The report's blocks on scored trees."""

from __future__ import annotations

from pipeline.common.settings import RunSettings
from pipeline.reporting import page, parsing

SCORES = {"": 91.25, "_low": 90.0, "_high": 92.0, "_at_most_40_words": 92.0, "_recall": 91.0, "_precision": 91.5,
          "_complete_match": 40.0, "_average_crossing": 1.5, "_malformed": 0.015, "_not_scored": 0}  # fmt: skip
METRICS = {
    **{f"f1{prefix}{key}": value for prefix in ("", "_valid") for key, value in SCORES.items()},
    "f1_set": "wsj23, 2416 lines", "f1_valid_set": "wsj22, 1700 lines", "f1_signature": "evalb|rules:COLLINS",
    "ppl_valid": 1.1, "params": 1000, "train_flops_paper": 1e18, "train_flops_counted": 2e18,
}  # fmt: skip


def test_f1_stands_beside_the_papers_and_table_4() -> None:
    run = RunSettings(row="parse-wsj", pair="en-tree", corpus="wsj", seed=1)
    text = page.markdown(parsing.results(run, "parse-wsj", METRICS, same_sets=True), "figures")
    assert "| F1 (95% interval) | wsj23, 2416 lines; average | 91.3 | 91.25 (90.00 to 92.00) |" in text
    assert "| outputs that had to be repaired | wsj22, 1700 lines; last checkpoint |  | 1.50% |" in text
    assert "| Dyer et al. (2016) | generative | 93.3 |" in text
    assert "| Transformer (parse-semi), the paper |  | 92.7 |" in text
    assert "| **this run (parse-wsj, wsj), wsj23, 2416 lines** |" in text


def test_f1_of_other_trees_stands_alone() -> None:
    run = RunSettings(row="parse-wsj", pair="en-tree", corpus="craft", seed=1)
    text = page.markdown(parsing.results(run, "parse-wsj", METRICS, same_sets=False), "figures")
    assert "| F1 (95% interval) | wsj23, 2416 lines; average | 91.25 (90.00 to 92.00) |" in text
    assert "91.3" not in text
    assert "Dyer" not in text
