"""The report: what it shows of a run, in Markdown and in a page that needs no other file."""

import base64
import contextlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from clones import ROOT
from markupsafe import escape
from model_folders import folder_of

from pipeline.config import paths, resolution, sections, wording
from pipeline.config.paths import CONFIG
from pipeline.report import chapters, figures, scores, sentences
from pipeline.report.page import Figure
from pipeline.stages import report

DRAW, IDENTITIES = figures.draw, scores.identities
STEPS = ("sacreBLEU, 13a", "Moses tokens", "compounds split at hyphens", "unicode quotes made plain")
METRICS: dict[str, Any] = {
    "bleu": 26.51, "bleu_low": 25.9, "bleu_high": 27.1, "bleu_signature": "nrefs:1|case:mixed",
    "bleu_set": "newstest2014, 3003 lines", "bleu_model": "mean of updates 94,000, 95,500, 97,000, 98,500, 100,000",
    "averaged_checkpoints": 5, "bleu_paper_way": 27.05, "bleu_paper_way_step_2": 26.7, "bleu_paper_way_step_3": 27.0,
    "bleu_paper_way_steps": "; ".join(STEPS), "chrf": 55.0, "chrf_signature": "nc:6",
    "valid_bleu": 25.1, "valid_bleu_paper_way": 25.6, "valid_bleu_set": "newstest2013, 3000 lines", "valid_ppl": 4.97,
    "bleu_references": "newstest2014", "valid_bleu_references": "newstest2013",
    "params": 63_082_496, "vocabulary": 37_000, "updates": 100_000, "train_seconds": 43_205.4,
    "device": "Tesla P100", "devices": 8, "precision": "float32",
    "sustained_flops": 9.5e12, "sustained_flops_source": "the paper",
    "train_flops_paper": 3.283e18, "train_flops_counted": 9.5e17, "model_flops_utilisation": 0.26,
}  # fmt: skip
GPU = {"processor": "", "threads": 0, "torch": "2.13.0"}
CERTIFICATE: dict[str, Any] = {
    "training": {"links": [{"update": update, "conditions": GPU} for update in (500, 1000)]},
    "files": {"data/raw/train.en": "d" * 64, "results/scores.json": "b" * 64},
    "seal": "c" * 64,
}


def _write(path: Path | str, content: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(content, encoding="utf-8")


def _stages_before(row: str, pair: str, overrides: dict[str, Any], sets: tuple[str, str]) -> None:
    valid, test = sets
    local = {"path": "x", "sha256": "0" * 64}
    text, *held_out = ({"name": name, "source": local, "target": local} for name in ("text", *sets))
    texts = {"train": [text], "valid": held_out[0], "test": held_out[1]}
    catalog = {"description": "Plain files", "pairs": dict.fromkeys(("en-de", "fr-de", "en-fr"), texts)}
    _write("data/catalog/news.yaml", yaml.safe_dump(catalog))
    params = {"row": row, "pair": pair, "corpus": "news", "seed": 3, "overrides": overrides}
    _write(CONFIG, resolution.text(resolution.resolve(params)))
    named = {"bleu_set": f"{test}, 3003 lines", "valid_bleu_set": f"{valid}, 3000 lines"}
    _write(paths.SCORES, json.dumps({**METRICS, **named}))
    _write(paths.CERTIFICATE, json.dumps(CERTIFICATE))
    training = {"processes": 8, "tokens_per_second": 57870.4, "padding": 0.021}
    _write(paths.TRAINING, json.dumps({**training, "device_seconds": {"Tesla P100": 345_600.0}}))
    header = "update,loss,nll,learning_rate,gradient_norm,tokens_per_second,padding"
    _write(paths.CURVES, f"{header}\n1,9.1,9.0,1e-7,1,50000,0.1\n2,8.1,8.0,2e-7,1,51000,0.1\n")
    _write(paths.VALIDATION, "update,valid_loss,valid_ppl\n2,7.5,1808.0\n")
    outputs = ({"update": update, "outputs": {"1": [40, 5, 6]}} for update in (2, 4))
    _write(paths.VALIDATION_OUTPUTS, "".join(json.dumps(record) + "\n" for record in outputs))
    binned = {"pairs": 4_500_000, "dropped": {"too long": 12}, "histogram": {"8": 1234}}
    _write(paths.BINNED_STATS, json.dumps(binned))
    source, target = pair.split("-")
    _write(f"data/raw/valid.{valid}.{source}", "One\nThree\n")
    _write(f"data/raw/valid.{valid}.{target}", "Eins\nDrei\n")
    _write(f"data/raw/test.{test}.{source}", "A <b> | c\nTwo\n")
    _write(f"data/raw/test.{test}.{target}", "Ein *b* | c\nZwei\n")
    _write(f"results/translations/{test}.average.{target}", "Ein b\r | c\nZwei\n")
    _write(f"data/tokenized/train.{target}", "Zwei Ein c\nZwei\n")
    _write(f"data/tokenized/train.{source}", "Two A c\nTwo\n")
    counts = {"source": 28, "target": 966, "pair": 12}
    _write("data/tokenized/stats.json", json.dumps({"overlap": {"test": counts, "valid": dict.fromkeys(counts, 0)}}))
    paths.ATTENTION.mkdir(parents=True, exist_ok=True)
    words = {"source.0": np.array(["Two", "</s>"]), "target.0": np.array(["<s>"])}
    weights = {"encoder.0": (2, 2), "decoder.0": (1, 1), "cross.0": (1, 2)}
    arrays: dict[str, Any] = words | {name: np.zeros((1, 2, *shape), np.uint8) for name, shape in weights.items()}
    np.savez(paths.ATTENTION / "sentences.npz", **arrays)


@pytest.fixture(scope="module", autouse=True)
def _sets_are_known_by_their_names() -> Iterator[None]:
    """The texts here are not those of the literature."""

    def identities(data: Any, _scores: Any) -> dict[str, str]:
        return {f"{key}bleu_references": data[role]["name"] for key, role in (("", "test"), ("valid_", "valid"))}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scores, "identities", identities)
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("model") / "average")


@pytest.fixture(autouse=True)
def _nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes most of the time of a report."""
    monkeypatch.setattr(figures, "draw", lambda _, caption, name: Figure(b"<svg/>", caption, name))


def _base_with_more_dropout(model: Path) -> None:
    shutil.copytree(model, paths.AVERAGE)
    _stages_before("base", "en-de", {"model": {"P_drop": 0.2}}, ("newstest2013", "newstest2014"))


@pytest.fixture(autouse=True)
def repository(here: Path, model: Path) -> None:
    _base_with_more_dropout(model)


def _written() -> tuple[str, str]:
    report.run()
    assert paths.FIGURES.is_dir()
    return paths.REPORT.read_text(encoding="utf-8"), paths.REPORT_HTML.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, model: Path) -> tuple[str, str]:
    """The report of base with a change in dropout, in Markdown and HTML."""
    with contextlib.chdir(tmp_path_factory.mktemp("base")):
        _base_with_more_dropout(model)
        return _written()


def test_the_row_stands_beside_the_papers_and_the_literature(base: tuple[str, str]) -> None:
    markdown, html = base
    assert "<b>" not in html
    lines = markdown.split("\n")
    assert lines[0] == "# Attention Is All You Need, reproduced: English to German, corpus news"
    assert lines[2] == (
        "Run P\\_drop=0.2 · base-news-s3: a Transformer with 63.1 million parameters, trained from raw text in 12 "
        "hours on 8 x Tesla P100: BLEU 26.5 on newstest2014, 3003 lines, en-de. Text: Plain files."
    )
    assert "| BLEU, the paper's way | newstest2014, 3003 lines; average | 27.3 | 27.05 |" in lines
    assert "| BLEU, sacreBLEU (95% interval) | newstest2014, 3003 lines; average |  | 26.51 (25.90 to 27.10) |" in lines
    assert "| perplexity per subword | newstest2013, 3000 lines; last checkpoint | 4.92 | 4.97 |" in lines
    assert "| training FLOPs, the paper's way |  | 3.3e+18 | 3.28e+18 |" in lines
    assert "| ConvS2S ensemble | 26.36 | 7.7e+19 |" in lines
    assert "| Transformer (big), the paper | 28.4 | 2.3e+19 |" in lines
    assert "| **this run (base, news), newstest2014, 3003 lines** | **27.05** | **3.28e+18** |" in lines
    steps = zip(STEPS, ("26.51", "26.70", "27.00", "27.05"), strict=True)
    assert "\n".join(f"| {step} | {score} |" for step, score in steps) in markdown
    assert "| training time, attempts lost to a kill included | 12 hours and 5 seconds |" in lines
    assert "| device time, all attempts | 4 days of Tesla P100 |" in lines
    assert "| model FLOPs utilisation | 26.0% |" in lines
    assert "| dropped.too long | 12 |" in lines
    assert "1,234" not in markdown, "the histogram is left out"
    assert "Test sets" not in markdown, "there is one"
    section = markdown.split("## Certificate")[1].split("\n## ")[0]
    assert "2 files, 2 hashes of the training up to update 1,000, " in section
    assert "c" * 64 in section


def test_markdown_has_what_a_line_was_at_every_validation(base: tuple[str, str]) -> None:
    section = base[0].split("## While it trained")[1].split("\n## ")[0].split("\n")
    at = section.index("| update | validation loss | output for: Three |")
    assert [row.split(" | ")[0] for row in section[at + 2 : -1]] == ["| 2"], "no validation without its loss"


def test_differences_are_listed_and_explained(base: tuple[str, str]) -> None:
    markdown, _ = base
    section = markdown.split("## Differences from the paper's base")[1].split("\n## ")[0]
    table = [line for line in section.split("\n") if line.startswith("|")][2:]
    assert table == ["| model.P\\_drop | 0.1 | 0.2 |"]
    assert "0.25 BLEU below the paper's base (other settings and text) on newstest2014" in section
    assert "65,110,016 parameters; the paper prints 65 million" in section


def test_what_is_split_for_the_papers_bleu_is_the_targets() -> None:
    for pair, split in (("fr-de", True), ("en-fr", False)):
        _stages_before("sample", pair, {}, ("dev", "held-out"))
        assert ("with compounds split and quotes made plain" in _written()[0]) == split


def test_an_average_of_fewer_checkpoints_is_explained(base: tuple[str, str]) -> None:
    assert "averaging.last" not in base[0]
    fewer = {**METRICS, "averaged_checkpoints": 4, "bleu_model": "mean of updates 1, 2, 3, 4"}
    _write(paths.SCORES, json.dumps(fewer))
    assert "The average is the mean of updates 1, 2, 3, 4: averaging.last is 5, but training left 4." in _written()[0]


def test_scores_of_other_sets_are_not_in_table_2() -> None:
    _stages_before("sample", "en-fr", {}, ("dev", "held-out"))
    markdown, _ = _written()
    assert "this run's are of dev, 3000 lines, and held-out, 3003 lines. That is other text" in markdown
    assert "held-out, 3003 lines, en-fr, not the paper's test set. Text:" in markdown
    assert "27.3" not in markdown
    assert "| measure | set and model | this run |" in markdown
    assert "BLEU below the paper's" not in markdown
    assert "sentencepiece stands in" in markdown
    # Table 2 holds scores of newstest2014 only.
    assert "## Beside Table 2" not in markdown
    assert "GNMT" not in markdown
    assert {path.name for path in paths.FIGURES.iterdir()} == {"training.svg"}


def test_a_name_puts_no_run_beside_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "identities", IDENTITIES)
    markdown, _ = _written()
    assert "newstest2013, 3000 lines, and newstest2014, 3003 lines. That is other text" in markdown
    assert "## Beside Table 2" not in markdown


def test_table_2_is_that_of_the_pair_and_table_3_of_english_german() -> None:
    _stages_before("base", "en-fr", {}, ("newstest2013", "newstest2014"))
    markdown, _ = _written()
    assert "| GNMT + RL | 39.92 | 1.4e+20 |" in markdown
    assert "| perplexity per subword | newstest2013, 3000 lines; last checkpoint |  | 4.97 |" in markdown
    assert "None in the settings." in markdown


def _differences(corpus: str, pair: Any, row: str, **overrides: Any) -> dict[str, tuple[str, str]]:
    """Key -> the paper's value and the run's, by the catalogs of the repository."""
    params = {"row": row, "pair": pair, "corpus": corpus, "seed": 1, "overrides": overrides}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        resolved = resolution.resolve(params)
    chosen = {name: getattr(resolved, name).model_dump() for name in sections.SECTIONS}
    return {key: (paper, ours) for key, paper, ours in chapters.differences(resolved.run, chosen)}


@pytest.mark.parametrize("row", ["base", "big", "A-h4"])
@pytest.mark.parametrize("pair", ["en-de", "en-fr"])
@pytest.mark.parametrize("corpus", ["wmt14", "wmt16-t2t"])
def test_the_papers_corpora_are_no_differences(corpus: str, pair: str, row: str) -> None:
    assert _differences(corpus, pair, row, training={"validation_sample": 64, "keep_states": 9}) == {}


def test_what_is_overridden_on_the_papers_corpus_is_a_difference() -> None:
    differing = _differences("wmt14", "en-de", "base", subwords={"vocabulary": 36_000}, model={"N": 3})
    assert differing == {"subwords.vocabulary": ("37000", "36000"), "model.N": ("6", "3")}
    merges = _differences("wmt14", "en-de", "base", subwords={"merges": 40_000})
    assert merges == {"subwords.merges": ("32000", "40000")}
    pieces = _differences("wmt16-t2t", "en-de", "base", subwords={"kind": "wordpieces", "vocabulary": 32_000})
    assert pieces == {"subwords.kind": ("bpe", "wordpieces"), "subwords.vocabulary": ("37000", "32000")}


def test_the_page_needs_no_other_file_and_is_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "draw", DRAW)
    _, html = _written()
    targets = re.findall('(?:src|href)="(.*?)"', html)
    assert len([target for target in targets if target.startswith("data:image/svg+xml;base64,")]) == 1
    assert all(target.startswith(("data:image/svg+xml;base64,", "#section-", "#line=")) for target in targets)
    assert {path.name for path in paths.FIGURES.iterdir()} == {"training.svg"}
    shown = [base64.b64decode(data).decode() for data in re.findall(r"base64,([^\"]+)", html)]
    assert all(picture.rstrip().endswith("</svg>") for picture in shown)
    assert _written()[1] == html


def test_what_is_not_finite_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("update,loss\n1,9\n2,nan\n3,inf\n4,8\n")
    assert figures.series(tmp_path / "table.csv", "loss") == [(1.0, 9.0), (4.0, 8.0)]


def test_the_top_has_four_numbers_the_papers_beside_them_and_the_best_and_worst_lines(base: tuple[str, str]) -> None:
    lines = base[0].split("\n")
    beside = "the paper's way 27.1; the paper's base (other settings and text): 27.3"
    tiles = [line for line in lines[: lines.index("## While it trained")] if line.startswith("|")]
    assert tiles[2:6] == [
        f"| BLEU | 26.5 | 25.9 to 27.1 (95%); newstest2014, 3003 lines; {beside} |",
        "| perplexity | 4.97 | per subword; newstest2013; the paper's base (other settings and text): 4.92 |",
        "| training time | 12 hours | 8 x Tesla P100, float32 |",
        "| parameters | 63.1 million | 100,000 updates |",
    ]
    assert [row.split(" | ")[0] for row in tiles[6:]] == ["| line", "| ---", "| 2", "| 1"], "best and worst"
    assert '<a href="#line=2">2</a>' in base[1]
    assert base[0].count("| line | chrF |") == 1, "not again as those of the test set"
    assert re.search('<details id="section-[0-9]+" open>\n<summary><h2>Curves of the training', base[1])
    seen = "test set: source 28, target 966, pair 12; validation set: source 0, target 0, pair 0."
    assert f"Lines that are in the training text, too. {seen}" in lines


def test_groups_are_named_after_the_score_of_the_run(base: tuple[str, str]) -> None:
    assert "| words of the source | lines | BLEU |" in base[0]
    scored = {key.replace("bleu", "chrf"): value for key, value in METRICS.items() if "paper_way" not in key}
    _stages_before("sample", "de-en", {}, ("dev", "held-out"))
    _write(paths.SCORES, json.dumps({**scored, "chrf_signature": "nc:6"}))
    assert "| words of the source | lines | chrF |" in _written()[0]


def test_the_best_of_equal_lines_are_the_longest_and_lines_without_a_score_are_left_out() -> None:
    scored = [("aa", 50.0), ("b", 100.0), ("ccc", 100.0), ("dd", None), ("e", 0.0), ("ff", 60.0), ("gg", 70.0)]
    table = sentences.extremes([sentences.Line(text, text, text, score) for text, score in scored], "chrF")
    assert [row[0] for row in table.rows] == ["3", "2", "7", "5", "1", "6"]
    assert [row[0] for row in sentences.extremes([sentences.Line("a", "a", "a", 1.0)], "chrF").rows] == ["1"]


def test_words_that_no_reference_has_make_no_row() -> None:
    line = sentences.Line("", "often", "never", 0.0)
    table = sentences.by_frequency([line], str, Counter(often=1000))
    assert table.rows == [("1,000 and more", "1", "0%", "")]


def test_examples_come_from_all_parts_of_the_test_set() -> None:
    lines = [sentences.Line(f"{n} " * (6 if n % 2 else 20), "", "", 0.0) for n in range(100)]
    assert [source.split()[0] for source in sentences.examples(lines, "en")] == ["1", "21", "41", "61", "81"]
    assert sentences.examples(lines[:1], "en") == [lines[0].source]
    lines[61] = lines[61]._replace(score=9.0)
    assert [source.split()[0] for source in sentences.examples(lines, "en")] == ["61", "1", "21", "41", "81"]


def test_lines_are_kept_with_their_scores_and_grouped() -> None:
    markdown, _ = _written()
    kept = [json.loads(line) for line in paths.SENTENCES.read_text(encoding="utf-8").splitlines()]
    assert [line["source"] for line in kept] == ["A <b> | c", "Two"]
    assert kept[1] == {"source": "Two", "reference": "Zwei", "output": "Zwei", "score": 100.0}
    lines = markdown.split("\n")
    at = lines.index("### By frequency of words")
    # `Zwei` occurs twice in the training text, `Ein` and `c` once, `*`, `b` and `|` never; no word more often.
    assert lines[at + 4 :][:5] == [
        "| times in the training text | words | found in the translation | its words found in the reference |",
        "| --- | --- | --- | --- |",
        "| 0 | 4 | 50% | 100% |",
        "| 1 | 2 | 100% | 100% |",
        "| 2 to 4 | 1 | 100% | 100% |",
    ]


def test_what_the_runner_knows_is_shown() -> None:
    known = {"commit": "abc", "all runs:": "http://127.0.0.1:5000/wmt-en-de", "patch": " ```\n+one\n"}
    report.run(lambda: known)
    markdown, html = paths.REPORT.read_text(encoding="utf-8"), paths.REPORT_HTML.read_text(encoding="utf-8")
    assert "<li>commit abc</li>" in html
    command = (
        "dvc exp run -S row=base -S pair=en-de -S corpus=news -S seed=3 -S '~overrides' "
        """-S ++overrides.model.P_drop=0.2 -S '++overrides.training.precision="bfloat16"'"""
    )
    assert f"~~~~~~sh\ngit checkout abc\ngit apply differences.patch\n{command}\n~~~~~~\n" in markdown
    assert "~~~~~~sh\n ```\n+one\n~~~~~~" in markdown, "lines of the patch do not end it"
    assert f"git apply differences.patch\n{escape(command)}</code>" in html
    assert 'all runs: <a href="http://127.0.0.1:5000/wmt-en-de"' in html
    report.run(lambda: {"commit": "unknown"})
    assert "git checkout" not in paths.REPORT.read_text(encoding="utf-8")


def test_a_fine_tuned_run_names_its_parent() -> None:
    settings = yaml.safe_load(CONFIG.read_text())
    settings["training"]["start_from"] = {"folder": "data/local/parent", "weights": "5" * 64}
    CONFIG.write_text(yaml.safe_dump(settings))
    markdown, _ = _written()
    assert f"fine-tuned from data/local/parent (weights {'5' * 12}) in 12 hours" in markdown
    assert "trained from raw text" not in markdown
    assert "- the parent data/local/parent: copy it from this machine, no commit has it\n" in markdown


def test_a_cpu_is_named_with_what_decides_digits(base: tuple[str, str]) -> None:
    _write(paths.SCORES, json.dumps({**METRICS, "device": "cpu", "devices": 1}))
    for number, threads in ((2, "2 threads"), (1, "1 thread")):
        link = {"update": 500, "conditions": {"processor": "AMD EPYC", "threads": number, "torch": "2.13.0+cpu"}}
        _write(paths.CERTIFICATE, json.dumps({**CERTIFICATE, "training": {"links": [link]}}))
        assert f"in 12 hours on a CPU (AMD EPYC, {threads}, torch 2.13.0+cpu): BLEU" in _written()[0]
    assert "Tesla P100 (" not in base[0]


def test_a_time_has_two_units() -> None:
    texts = ["1 hour and 30 minutes", "1 day and 23 hours", "45 days", "4 seconds"]
    assert [wording.duration(seconds) for seconds in (5_399, 47 * 3600, 45 * 86_400, 4)] == texts


def test_a_picture_draws_single_points() -> None:
    falling = figures.Panel("Falling", "update", {"": [(14.0, 4741.0), (1400.0, 1.5)]}, logarithmic=True)
    svg = DRAW([falling, figures.Panel("One", "update", {"a": [(7.0, 3.0)]})], "c", "n").svg.decode()
    assert {"1,000", "100"} <= set(re.findall("<!-- (.*?) -->", svg))
    alone = svg[svg.index('id="axes_2"') :]
    assert re.search('id="line2d_[0-9]+">\\s+<defs>', alone), "a point has a marker"


def test_pictures_of_attention_say_what_they_show() -> None:
    _write(paths.ATTENTION / "cross-layer-2.svg", "<svg/>")
    markdown, _ = _written()
    assert "![Attention of layer 2, target to source: a picture for each head](" in markdown
    assert "computed in this page" not in markdown
    assert "At a terminal: wmt translate models/average" in markdown
