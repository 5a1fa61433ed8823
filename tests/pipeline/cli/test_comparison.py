"""`wmt compare`: two runs side by side. tests/pipeline/tracking/test_server.py fetches them from MLflow."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from browser import HOSTILE, PATIENCE, findings, open_sections, opened
from command_line import printed, refused

from nmt.bootstrap import Comparison
from nmt.common.files import sha256_of
from pipeline.report import comparison, sentences
from pipeline.report.sentences import Line
from pipeline.tracking import server

REFERENCES = [f"der Mann {number} sieht einen alten Hund im Garten" for number in range(60)]
SCORES = {"bleu_low": 1.0, "bleu_high": 99.0, "bleu_set": "test, 60 lines", "valid_ppl": 5.0}
Make = Callable[..., None]


@pytest.fixture
def make(empty_repository: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Make a run, called `name`-id: `wrong` of its lines are translated wrongly; or `parsed` are its lines."""
    Path("results").mkdir()

    def fetch(name: str, files: Sequence[str], folder: Path) -> tuple[str, list[Path]]:
        return f"{name}-id", [empty_repository / "made" / name / file for file in files]

    monkeypatch.setattr(server, "fetch_artifacts", fetch)

    def made(
        name: str, wrong: int, seed: int, prefix: str = "", parsed: list[Line] | None = None, N: int = 2,
        target: str = "tree", **scores: Any,
    ) -> None:  # fmt: skip
        folder = empty_repository / "made" / name
        folder.mkdir(parents=True)
        run = {"row": "sample", "pair": "en-de", "corpus": "mine", "seed": seed}
        config = {"run": run, "data": {"source": "en", "target": target if parsed else "de"}, "model": {"N": N}}
        config[HOSTILE[3]] = {"hostile": name} if parsed else {}
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        (folder / "scores.json").write_text(json.dumps({"bleu": 90.0, **SCORES, **scores}))
        (folder / "validation.csv").write_text("update,valid_loss,valid_ppl\n2,7.5,1808.0\n4,6.5,665.1\n")
        outputs = [reference.replace("alten", "<b>") for reference in REFERENCES[:wrong]] + REFERENCES[wrong:]
        lines = parsed or [
            Line(f"{prefix}source {number}", reference, output, 100.0 if reference == output else 50.0)
            for number, (reference, output) in enumerate(zip(REFERENCES, outputs, strict=True))
        ]
        (folder / "report.html").write_text(f"<title>{name}</title>")
        sentences.write(lines, folder / "sentences.jsonl")

    return made


def test_two_runs_are_compared_line_by_line(make: Make, browser: Any, tmp_path: Path) -> None:
    make("one", wrong=40, seed=1)
    make("two", wrong=0, seed=2, N=3, bleu=95.0)
    said = printed("compare", "one", "two", "--output", "pages/compared.html")
    assert said.startswith("two-id against one-id: +")
    assert "p = 0.001 (paired bootstrap)" in said
    # The bars' lengths are shares of the longest.
    assert (tmp_path / "pages/compared.html").read_text(encoding="utf-8").count('<rect width="100.0%"') == 1
    verdict = f"N 3 instead of 2, seed 2 instead of 1: +{float(said.split('+')[1].split()[0]):.1f}"
    with opened(browser, tmp_path / "pages/compared.html") as shown:
        open_sections(shown)
        rows = shown.locator(".lines > li")
        assert rows.first.locator("mark").all_text_contents() == ["<b>"], "the largest gain comes first"
        assert rows.first.locator("dt").all_text_contents() == ["source", "reference", "one-id", "two-id", "change"]
        change = rows.first.locator("dd").last
        assert (change.text_content() or "").endswith(" sieht einen <b> alten Hund im Garten ")
        assert change.locator("del").all_text_contents() == ["<b>"]
        assert change.locator("ins").all_text_contents() == ["alten"]
        shown.get_by_role("combobox", name="Lines").select_option("differ")
        shown.get_by_text("40 of 60 lines").wait_for(timeout=PATIENCE)
        first_screen = shown.locator("header")
        said = first_screen.locator("p").first.text_content() or ""
        assert said == f"{verdict} BLEU (p = 0.001, over sentences, not over seeds)"
        assert first_screen.get_by_text("40 lines are better, 0 are worse, 20 score the same.").is_visible()
        tables = [table.locator("tbody tr").all_text_contents() for table in first_screen.locator("table").all()]
        assert tables[:2] == [["compared-run-1.htmlone-id", "compared-run-2.htmltwo-id"], ["model.N23", "run.seed12"]]
        assert tables[2][-2:] == ["20 to 5040", "more than 500"], "40 lines gain 50"
        phrases = shown.locator("details", has_text="Words and phrases").locator("tbody tr").all_text_contents()
        assert phrases[0] == "alten+40"
        assert all(phrase.endswith("+40") for phrase in phrases), "none is lost"
        scores = shown.locator("details", has_text="Scores").locator("tbody").first.locator("tr").all_text_contents()
        assert {"bleu9095", "valid_ppl55"} <= set(scores)
    with opened(browser, tmp_path / "pages/compared-run-2.html") as shown:
        assert shown.title() == "two"


def test_each_test_set_that_both_have_is_compared(make: Make, tmp_path: Path) -> None:
    """As after fine-tuning: the headline of the second is a set of the first, too."""
    news, medical = ([Line(f"{name} {n}", one, one, 100.0) for n, one in enumerate(REFERENCES)] for name in "nm")
    worse = [line._replace(output="nichts", score=0.0) for line in news]
    own = {"bleu_low": 1.0, "bleu_high": 99.0}
    parsed = [*news, *(line._replace(output="nichts", set="medical") for line in medical)]
    sets = {"medical": {**own, "bleu": 0.5, "bleu_set": "medical, 60 lines"}}
    make("parent", wrong=0, seed=1, parsed=parsed, target="de", bleu=100.0, sets=sets)
    other = [Line("else", "else", "else", 100.0, "else")]
    parsed = [*medical, *other, *(line._replace(set="news") for line in worse)]
    sets = {"else": {**own, "bleu": 7.0, "bleu_set": "else, 1 lines"}}
    sets["news"] = {**own, "bleu": 3.5, "bleu_set": "news, 60 lines"}
    scores = {"bleu": 99.0, "bleu_set": "medical, 60 lines", "sets": sets}
    make("child", wrong=0, seed=1, parsed=parsed, target="de", **scores)
    said = printed("compare", "parent", "child").splitlines()
    assert said[0].startswith("child-id against parent-id: +")
    assert [line.rpartition(", p")[0].rpartition(", ")[0] for line in said[1:3]] == [
        "  medical, 60 lines: 0.50 to 99.00",
        "  news, 60 lines: 100.00 to 3.50",
    ]
    assert (" +" in said[1], " -" in said[2], len(said)) == (True, True, 4), "gain and loss; `else` is not shared"
    page = (tmp_path / "results/comparison.html").read_text(encoding="utf-8")
    assert ">test set</th>" in page
    assert "else, 1 lines" not in page


def test_a_run_on_other_lines_or_without_results_is_refused(make: Make) -> None:
    make("one", wrong=4, seed=1)
    make("two", wrong=4, seed=2, prefix="another ")
    why = "on different lines (one-id: test, 60 lines and two-id: test, 60 lines): compare two runs of one test set"
    assert refused("compare", "one", "two") == f"compare: the runs were scored {why}"
    for name, lacks in (("no-lines", "sentences.jsonl"), ("no-scores", "scores.json")):
        make(name, wrong=4, seed=2)
        Path("made", name, lacks).unlink()
    assert "has no lines of a test set" in refused("compare", "one", "no-lines")
    assert "has no scores: finish it with `dvc repro`" in refused("compare", "one", "no-scores")
    assert "the run . has no scores: finish it with `dvc repro`" in refused("compare", "one", ".")
    assert "is an input too" in refused("compare", "one", "one", "--output", "results/scores.json")
    assert not Path("results/comparison.html").exists()


def test_a_run_is_compared_with_the_results_in_this_folder(make: Make) -> None:
    """By the settings in its certificate: those in results/config.yaml are of a newer run, which still trains."""
    make("one", wrong=40, seed=1, bleu_signature="x")
    shutil.copytree("made/one", "results", dirs_exist_ok=True)
    files = {"results/scores.json": sha256_of(Path("results/scores.json"))}
    certificate = {"files": files, "settings": yaml.safe_load(Path("results/config.yaml").read_text()), "seal": ""}
    Path("results/certificate.json").write_text(json.dumps(certificate))
    make("two", wrong=0, seed=2, N=6)
    shutil.copyfile("made/two/config.yaml", "results/config.yaml")
    assert printed("compare", "one").startswith("sample-mine-s1 (here) against one-id: +0.00 ")
    assert "The settings are the same." in Path("results/comparison.html").read_text(encoding="utf-8")
    assert "run     sample-mine-s1\n" in printed("summary")
    shutil.copyfile("made/two/scores.json", "results/scores.json")
    assert "results/scores.json is of a run that is not finished: " in refused("compare", "one")


def test_parses_are_compared_by_f1_with_a_paired_bootstrap(make: Make, browser: Any, tmp_path: Path) -> None:
    gold = "(S (NP (D the) (N dog)) (VP (V sees) (NP (D a) (N man))))"
    flat = "(S (NP (D the) (N dog)) (V sees) (D a) (N man))"
    scores = {"f1_low": 1.0, "f1_high": 99.0, "f1_set": "trees, 60 lines"}
    for name, wrong, f1 in (("one", 40, 80.0), ("two", 0, 100.0)):
        parsed = [flat] * wrong + [gold] * (60 - wrong)
        lines = [Line("the dog sees a man", gold, tree, 100.0 if tree == gold else 200 / 3) for tree in parsed]
        make(name, wrong=wrong, seed=1, parsed=lines, f1=f1, **scores)
    # Of 60 * 4 gold brackets, 40 * 2 + 20 * 4 of as many parsed ones match: F1 is 2 * 160 / (240 + 160).
    assert "+20.00 F1, p = 0.001 (paired bootstrap)\n" in printed("compare", "one", "two")
    phone: Any = {"color_scheme": "dark", "viewport": {"width": 390, "height": 844}}
    with opened(browser, tmp_path / "results/comparison.html", **phone, bypass_csp=True) as shown:
        open_sections(shown)
        assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
        header = shown.get_by_role("columnheader", name="sentences")
        rows = "const text = new Range(); text.selectNode(cell.firstChild); return text.getClientRects().length;"
        assert header.evaluate(f"(cell) => {{ {rows} }}") == 1, "a word is not broken where the table can scroll"
        assert findings(shown) == []
        assert shown.locator("h2", has_text="Parses side by side").count() == 1
        assert shown.get_by_text("missing in the parse").count() == 1
        assert shown.locator("[lang=tree]").count() == 0, "which names no language"
        assert shown.locator(".lines > li").first.locator("[lang=en]").count() == 1
        tile = shown.locator(".tiles div", has_text="difference")
        assert tile.locator("dd").all_text_contents() == ["+20.00", "paired bootstrap of 1,000 resamples"]
        groups = shown.locator("h3", has_text="F1 by length").locator("xpath=following-sibling::*[1]")
        assert groups.locator("tbody tr").all_text_contents() == ["1 to 106080.0100.0"]


def test_the_verdict_names_what_matters_first_and_counts_the_rest() -> None:
    gain = Comparison(difference=-0.04, p_value=0.5)
    keys = ("averaging.last", "model.N", "run.seed", "training.checkpoint_every", "training.eps_ls", "training.updates")
    changed = [(key, "1", "2") for key in keys]
    said = comparison.verdict("name", changed, gain, "BLEU")
    ordered = ", ".join(f"{key} 2 instead of 1" for key in ("updates", "N", "eps_ls", "last"))
    assert said == f"{ordered}, and 1 more: +0.0 BLEU (p = 0.500, over sentences, not over seeds)"
