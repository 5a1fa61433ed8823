"""`wmt compare`: two runs side by side, from MLflow."""

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
from tracked import connected, root, store

from pipeline.report import sentences
from pipeline.report.sentences import Line

REFERENCES = [f"der Mann {number} sieht einen alten Hund im Garten" for number in range(60)]
SCORES = {"bleu_low": 1.0, "bleu_high": 99.0, "bleu_set": "test, 60 lines", "valid_ppl": 5.0}
Make = Callable[..., str]
__all__ = ["root", "store"]


@pytest.fixture
def make(root: Path, tmp_path: Path) -> Make:
    """Make a run in MLflow, without the results `lacks`, and return its full name.

    `wrong` of its lines are translated wrongly; `parsed` are its lines in place of translations.
    """

    def made(
        name: str,
        wrong: int,
        seed: int,
        prefix: str = "",
        lacks: str = "",
        parsed: list[Line] | None = None,
        **scores: Any,
    ) -> str:
        folder = tmp_path / "made" / f"{name}-{wrong}"
        folder.mkdir(parents=True)
        run = {"row": "sample", "pair": "en-de", "corpus": "mine", "seed": seed}
        config = {"run": run, "data": {"source": "en", "target": "tree" if parsed else "de"}, "model": {"N": 2}}
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        (folder / "scores.json").write_text(json.dumps({"bleu": 90.0, **SCORES, **scores}))
        (folder / "validation.csv").write_text("update,valid_loss,valid_ppl\n2,7.5,1808.0\n4,6.5,665.1\n")
        outputs = [reference.replace("alten", "<b>") for reference in REFERENCES[:wrong]] + REFERENCES[wrong:]
        lines = parsed or [
            Line(f"{prefix}source {number}", reference, output, 100.0 if reference == output else 50.0)
            for number, (reference, output) in enumerate(zip(REFERENCES, outputs, strict=True))
        ]
        sentences.write(lines, folder / "sentences.jsonl")
        if lacks:
            (folder / lacks).unlink()
        with connected(root / "mlflow.db") as client:
            experiment = client.get_experiment_by_name("wmt-en-de")
            artifacts = (root / "mlartifacts").as_uri()
            identity = experiment.experiment_id if experiment else client.create_experiment("wmt-en-de", artifacts)
            logged = client.create_run(identity, run_name=name)
            client.log_artifacts(logged.info.run_id, str(folder))
        return f"{name}-{logged.info.run_id[:8]}"

    return made


def test_two_runs_are_compared_line_by_line(make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = make("one-s1", wrong=40, seed=1), make("one-s2", wrong=0, seed=2, bleu=95.0)
    assert wmt("compare", "one-s1", second.rpartition("-")[2], "--output", "pages/compared.html") == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{second} against {first}: +")
    assert "p = 0.001 (paired bootstrap)" in said
    with chromium() as browser, opened(browser, tmp_path / "pages/compared.html") as shown:
        open_sections(shown)
        rows = shown.locator(".lines > li")
        assert rows.first.locator("mark").all_text_contents() == ["<b>"], "the largest gain comes first"
        assert rows.first.locator("dt").all_text_contents() == ["source", "reference", first, second]
        shown.get_by_role("combobox", name="Lines").select_option("differ")
        shown.get_by_text("40 of 60 lines").wait_for(timeout=PATIENCE)
        settings = shown.locator("details").last.locator("tbody tr").all_text_contents()
        assert settings == ["run.seed12"]
        scores = shown.locator("details", has_text="Scores").locator("tbody").first.locator("tr").all_text_contents()
        assert scores[:2] == ["BLEU, sacreBLEU9095", "perplexity per subword, validation set55"]


def test_runs_on_other_lines_are_refused(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = make("one", wrong=4, seed=1), make("two", wrong=4, seed=2, prefix="another ")
    assert wmt("compare", "one", "two") == 1
    assert capsys.readouterr().err == (
        f"compare: the runs were scored on different lines ({first}: test, 60 lines and {second}: test, 60 lines): "
        "compare two runs of one test set\n"
    )
    assert not Path("results/comparison.html").exists()


def test_a_run_without_results_is_refused(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    make("one", wrong=4, seed=1)
    for name, lacks, message in (
        ("", "", "'' names 0 runs: MLflow's page lists names and ids"),
        ("no-lines", "sentences.jsonl", "has no lines of a test set"),
        ("no-scores", "scores.json", "has no scores: finish it with `dvc repro`"),
        (".", "", "the run . has no scores: finish it with `dvc repro`"),
    ):
        if lacks:
            make(name, wrong=4, seed=2, lacks=lacks)
        assert wmt("compare", "one", name) == 1
        assert message in capsys.readouterr().err
    first, second = make("same", wrong=4, seed=1), make("same", wrong=3, seed=1)
    assert wmt("compare", "one", "same") == 1
    error = capsys.readouterr().err
    assert "'same' names 2 runs (" in error
    assert first in error
    assert second in error


def test_a_run_is_compared_with_the_results_in_this_folder(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    first = make("one", wrong=40, seed=1)
    for path in Path("made/one-40").iterdir():
        path.rename(Path("results", path.name))
    assert wmt("compare", "one") == 0
    assert capsys.readouterr().out.startswith(f". against {first}: +0.00 ")


def test_what_is_no_file_is_not_replaced_by_the_page(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make("one", wrong=4, seed=1)
    os.mkfifo("pipe")
    Path("link").symlink_to("pipe")
    Path("file").touch()
    for name, why in (
        ("link", "is no regular file"),
        (".", "is no regular file"),
        ("file/x", "is no folder that"),
        ("results/scores.json", "is an input too"),
    ):
        assert wmt("compare", "one", "one", "--output", name) == 1
        assert why in capsys.readouterr().err
    assert Path("pipe").is_fifo()
    assert {path.name for path in tmp_path.iterdir()} >= {"file", "link", "pipe"}


def test_parses_are_compared_by_f1_with_a_paired_bootstrap(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gold, flat = (
        "(S (NP (D the) (N dog)) (VP (V sees) (NP (D a) (N man))))",
        "(S (NP (D the) (N dog)) (V sees) (D a) (N man))",
    )
    scores = {"f1_low": 1.0, "f1_high": 99.0, "f1_set": "trees, 60 lines"}
    for name, wrong, f1 in (("one", 40, 80.0), ("two", 0, 100.0)):
        parsed = [flat] * wrong + [gold] * (60 - wrong)
        lines = [Line("the dog sees a man", gold, tree, 100.0 if tree == gold else 200 / 3) for tree in parsed]
        make(name, wrong=wrong, seed=1, parsed=lines, f1=f1, **scores)
    assert wmt("compare", "one", "two") == 0
    # Of 60 * 4 gold brackets, 40 * 2 + 20 * 4 of as many parsed ones match: F1 is 2 * 160 / (240 + 160).
    assert "+20.00 F1, p = 0.001 (paired bootstrap)\n" in capsys.readouterr().out
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
