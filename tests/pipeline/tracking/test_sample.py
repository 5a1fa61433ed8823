"""A curve of BLEU and chrF from what a training wrote for some validation lines."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import wmt
from data_stages import data_section
from model_folders import folder_of
from tracked import STATE, configure, history, recorded, write_results

from nmt.codec import Codec
from nmt.text.settings import TokenizerSettings
from pipeline.tracking import registry, sample
from pipeline.tracking.follow import follow
from tests.pipeline.tracking.test_follow import measure

LINES = ["the old man sees a dog .", "She sleeps well , and we do !", "He did not see it ."]
TOKENIZER: dict[str, Any] = {"tokenizer": "moses", "normalize_punctuation": False, "aggressive_hyphens": False}


def write_text() -> None:
    for language in ("en", "de"):
        Path(f"data/raw/valid.news13.{language}").write_text("".join(f"{line}\n" for line in LINES))


@pytest.fixture
def texts(root: Path) -> list[dict[str, Any]]:
    """A repository with a validation set; records of its lines 3 and 2, written badly, then well."""
    filters = {"min_tokens": 1, "max_tokens": 80, "max_ratio": None, "drop_identical": False}
    data = data_section("t", valid="news13", test="news14")
    configure(
        {"data": data, "preparation": {"tokenizer": TOKENIZER, "filters": filters}, "scoring": {"tokenize": None}}
    )
    folder_of(Path("model"))
    Path("data/raw").mkdir(parents=True)
    Path("model.subwords").rename("data/subwords")
    write_text()
    codec = Codec(Path("data/subwords"), "en", "de", TokenizerSettings(**TOKENIZER))
    ids = [codec.encode(line)[:-1] for line in LINES]
    bad, well = {"2": ids[0], "1": ids[0]}, {"2": ids[2], "1": ids[1]}
    return [{"update": update, "seconds": 1.5, "outputs": {}, "sample": ids} for update, ids in ((10, bad), (20, well))]


def test_a_line_is_compared_with_its_own_reference(texts: list[dict[str, Any]]) -> None:
    first, last = sample.scored([{"update": 5, "loss": 1.0}, *texts])
    assert (last["update"], last["seconds"], last[sample.CHRF]) == (20, 1.5, pytest.approx(100))
    assert first[sample.BLEU] < 30
    assert last[sample.BLEU] == pytest.approx(100)


def test_without_the_libraries_or_the_text_there_is_no_curve_and_one_line_says_so(
    texts: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sample.report.cache_clear()
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "nmt.evaluation.bleu", raising=False)
        patch.delattr("nmt.evaluation.bleu", raising=False)
        patch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
        for _ in range(2):
            assert not list(sample.scored(texts))
    assert capsys.readouterr().err.startswith("tracking: no BLEU of the validation sample: import of sacrebleu")
    Path("data/raw/valid.news13.de").unlink()
    assert not list(sample.scored(texts))
    assert capsys.readouterr().err.count("\n") == 1
    configure({})
    assert not list(sample.scored([{"update": 5, "outputs": {}}])), "nothing was sampled"


def test_the_curve_is_followed_and_completed_from_the_results(
    root: Path, texts: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "register", lambda *_: None)
    state = root / "train" / STATE
    state.mkdir(parents=True)
    with follow(state):
        measure(state, *range(1, 11))
        with (state / "history.jsonl").open("a") as file:
            file.write(json.dumps(texts[0]) + "\n")
    (run,) = recorded(root)
    assert [step for step, _ in history(root, run, sample.CHRF)] == [10]
    (first,) = history(root, run, sample.BLEU)
    write_results()
    write_text()
    kept = [{key: value for key, value in record.items() if key != "seconds"} for record in texts]
    Path("results/validation.jsonl").write_text("".join(json.dumps(record) + "\n" for record in kept))
    for _ in range(2):
        assert wmt("publish") == 0
    (run,) = recorded(root)
    assert history(root, run, sample.BLEU) == [first, (20, pytest.approx(100))]
    assert run.data.metrics["valid_bleu"] == 25.8, "of the whole set, by beam search, is another number"
