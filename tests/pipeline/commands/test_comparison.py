"""`wmt compare`: two runs side by side, by their records."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from browser import PATIENCE, chromium, open_sections, opened
from command_line import wmt

from pipeline.reporting import sentences
from pipeline.reporting.sentences import Line

REFERENCES = [f"der Mann {number} sieht einen alten Hund im Garten" for number in range(60)]
SCORES = {"bleu_low": 1.0, "bleu_high": 99.0, "bleu_set": "test, 60 lines", "ppl_valid": 5.0}
DESCRIBED = {"parent": None, "tags": {}, "uuid": "", "settings": {}, "complete": True}
Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Make the record of a run: `wrong` of its lines are translated wrongly."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WMT_STATE", str(tmp_path / "work"))

    def made(name: str, wrong: int, seed: int, prefix: str = "", target: str = "de", **metrics: Any) -> Path:
        folder = tmp_path / "work/runs" / name
        (folder / "results").mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({**DESCRIBED, "name": name, "created": seed}))
        run = {"row": "sample", "pair": "en-de", "corpus": "mine", "seed": seed}
        config = {"run": run, "data": {"source": "en", "target": target}, "model": {"N": 2}}
        (folder / "results/config.yaml").write_text(yaml.safe_dump(config))
        (folder / "results/scores.json").write_text(json.dumps({"bleu": 90.0, **SCORES, **metrics}))
        (folder / "results/validation.csv").write_text("update,valid_loss,valid_ppl\n2,7.5,1808.0\n4,6.5,665.1\n")
        outputs = [reference.replace("alten", "<b>") for reference in REFERENCES[:wrong]] + REFERENCES[wrong:]
        lines = [
            Line(f"{prefix}source {number}", reference, output, 100.0 if reference == output else 50.0)
            for number, (reference, output) in enumerate(zip(REFERENCES, outputs, strict=True))
        ]
        sentences.write(lines, folder / "results/sentences.jsonl")
        return folder

    return made


def test_two_runs_are_compared_line_by_line(make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make("one-s1-aaaa", wrong=40, seed=1)
    make("one-s2-bbbb", wrong=0, seed=2, bleu=95.0)
    assert wmt("compare", "one-s1", "one-s2", "--output", "pages/compared.html") == 0
    said = capsys.readouterr().out
    assert said.startswith("one-s2-bbbb against one-s1-aaaa: +")
    assert "p = 0.001 (paired bootstrap)" in said
    with chromium() as browser, opened(browser, tmp_path / "pages/compared.html") as shown:
        open_sections(shown)
        rows = shown.locator(".lines > li")
        assert rows.first.locator("mark").all_text_contents() == ["<b>"], "the largest gain comes first"
        assert rows.first.locator("dt").all_text_contents() == ["source", "reference", "one-s1-aaaa", "one-s2-bbbb"]
        shown.get_by_role("combobox", name="Lines").select_option("differ")
        shown.get_by_text("40 of 60 lines").wait_for(timeout=PATIENCE)
        settings = shown.locator("details").last.locator("tbody tr").all_text_contents()
        assert settings == ["run.seed12"]
        scores = shown.locator("details", has_text="Scores").locator("tbody").first.locator("tr").all_text_contents()
        assert scores[:2] == ["BLEU, sacreBLEU9095", "perplexity per subword, validation set55"]


def test_runs_on_other_lines_are_refused(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    make("one", wrong=4, seed=1)
    make("two", wrong=4, seed=2, prefix="another ")
    assert wmt("compare", "one", "two") == 1
    assert capsys.readouterr().err == (
        "compare: the runs were scored on different lines (one: test, 60 lines and two: test, 60 lines): "
        "compare two runs of one test set\n"
    )
    assert not Path("results").exists()


def test_a_run_without_results_is_refused(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    make("one", wrong=4, seed=1)
    assert wmt("compare", "", "") == 1, "an empty name is the beginning of the only one"
    assert "'' names 0 runs" in capsys.readouterr().err
    folder = make("two", wrong=4, seed=2)
    (folder / "results/sentences.jsonl").unlink()
    assert wmt("compare", "one", "two") == 1
    assert "has no lines of a test set" in capsys.readouterr().err
    (folder / "results/scores.json").write_text('{"ppl_valid": 5.0}')
    assert wmt("compare", "one", "two") == 1
    assert "results/scores.json has no bleu: restore it, or remove" in capsys.readouterr().err
    (folder / "results/scores.json").unlink()
    assert wmt("compare", "one", "two") == 1
    assert capsys.readouterr().err.startswith("compare: the run two has no scores: finish it with `dvc repro`")
    assert wmt("compare", "one", "three") == 1
    assert "`wmt runs` lists them" in capsys.readouterr().err


@pytest.mark.parametrize("command", [("compare", "one", "one", "--output"), ("ablation", "--out")])
def test_what_is_no_file_is_not_replaced_by_the_page(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    """Nor by an ablation's report, which is refused before the first training."""
    make("one", wrong=4, seed=1)
    os.mkfifo("pipe")
    Path("link").symlink_to("pipe")
    Path("file").touch()
    for name, why in (("link", "is no regular file"), (".", "is no regular file"), ("file/x", "is no folder that")):
        assert wmt(*command, name) == 1
        assert why in capsys.readouterr().err
    assert Path("pipe").is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "pipe", "work"]


def test_a_link_leads_to_the_page(make: Make) -> None:
    make("one", wrong=4, seed=1)
    Path("link").symlink_to("page")
    assert wmt("compare", "one", "one", "--output", "link") == 0
    assert Path("link").is_symlink()
    assert "<html" in Path("page").read_text()


def test_parses_are_compared_by_f1_with_a_paired_bootstrap(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gold, flat = (
        "(S (NP (D the) (N dog)) (VP (V sees) (NP (D a) (N man))))",
        "(S (NP (D the) (N dog)) (V sees) (D a) (N man))",
    )
    scores = {"f1_low": 1.0, "f1_high": 99.0, "f1_set": "trees, 60 lines"}
    for name, wrong, f1 in (("one", 40, 80.0), ("two", 0, 100.0)):
        folder = make(name, wrong=wrong, seed=1, target="tree", f1=f1, **scores)
        parsed = [flat] * wrong + [gold] * (60 - wrong)
        lines = [Line("the dog sees a man", gold, tree, 100.0 if tree == gold else 200 / 3) for tree in parsed]
        sentences.write(lines, folder / "results/sentences.jsonl")
    assert wmt("compare", "one", "two") == 0
    # Of 60 * 4 gold brackets, 40 * 2 + 20 * 4 of as many parsed ones match: F1 is 2 * 160 / (240 + 160).
    assert capsys.readouterr().out.startswith("two against one: +20.00 F1, p = 0.001 (paired bootstrap)\n")
    with chromium() as browser, opened(browser, tmp_path / "results/comparison.html") as shown:
        open_sections(shown)
        assert shown.locator("h2", has_text="Parses side by side").count() == 1
        assert shown.get_by_text("missing in the parse").count() == 1
        assert shown.locator("[lang=tree]").count() == 0, "which names no language"
        assert shown.locator(".lines > li").first.locator("[lang=en]").count() == 1
        tile = shown.locator(".tiles div", has_text="difference")
        assert tile.locator("dd").all_text_contents() == ["+20.00", "p = 0.001, paired bootstrap of 1,000 resamples"]
        groups = shown.locator("h3", has_text="F1 by length").locator("xpath=following-sibling::*[1]")
        assert groups.locator("tbody tr").all_text_contents() == ["1 to 106080.0100.0"]
