"""The report's blocks on scores beside those of others."""

from typing import Any

from pipeline.config.corpora import RunSettings
from pipeline.report import page, scores, sentences

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


def test_the_title_has_the_languages_by_name() -> None:
    pairs = ("zho_Hans-cs", "en-eu")
    titles = [scores.title(RunSettings(row="tiny", pair=pair, corpus="c", seed=1)) for pair in pairs]
    assert "reproduced: Chinese to Czech, corpus c" in titles[0]
    assert "reproduced: English to eu, corpus c" in titles[1]


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


def test_multi30k_stands_beside_what_others_report_where_set_direction_and_measure_agree() -> None:
    def text(pair: str, **changed: Any) -> str:
        kept = ("valid_ppl", "params", "train_flops_paper", "train_flops_counted")
        metrics = {key: METRICS[key] for key in kept} | {"bleu": 39.5, "bleu_low": 38.0, "bleu_high": 41.0}
        metrics |= {"bleu_set": "test2016, 1000 lines", "bleu_references": "multi30k-test2016", "chrf_signature": "c"}
        metrics |= {"valid_bleu_set": "val, 1014 lines", "valid_bleu_references": "5" * 64, "bleu_signature": "s"}
        run = RunSettings(row="small", pair=pair, corpus="multi30k", seed=1)
        return page.markdown(scores.results(run, metrics | changed, "the paper"), "figures")

    told = text("en-de", bleu_lowercased_moses=40.53)
    assert "| BLEU, lower-cased Moses tokens | test2016, 1000 lines; average | 40.53 |" in told
    assert "| Transformer, text alone | 41.02 | 4 + 4 layers of 128, " in told
    assert "| **this run (small, multi30k), test2016, 1000 lines** | **40.53** |" in told
    assert "What others report" not in text("de-en", bleu_lowercased_moses=40.53)
    assert "What others report" not in text("en-de"), "sacreBLEU is another measure"


def test_chinese_sources_are_grouped_by_their_characters() -> None:
    lines = [sentences.Line(source, "a b c d", "a b c d", 100.0) for source in ("一只狗", "一只棕色的狗在草地上奔跑")]
    table = sentences.by_length({"BLEU": lines}, ("zh", "en"), None)
    assert table.header[0] == "characters of the source"
    assert [row[0] for row in table.rows] == ["0 to 10", "11 to 20"]
