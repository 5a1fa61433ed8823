from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from nmt.config import InputError
from pipeline import plan, resolve
from pipeline.config import Configuration

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def configuration(row: str, pair: str = "en-de", corpus: str = "wmt14") -> Configuration:
    return resolve.resolve({"row": row, "pair": pair, "corpus": corpus, "seed": 1, "overrides": {}})


def test_base_on_wmt14_is_what_the_paper_says_it_is() -> None:
    base = configuration("base")
    corpus = plan.corpus_size(base, prepared=False)
    assert (corpus.pairs, corpus.origin) == (4_508_785, "known")
    assert 36_000 < corpus.vocabulary < 38_000
    wanted = plan.needs(base, corpus, micro_tokens=4096)
    # Six operations a weight and token pair: 6 * 65e6 * 25,000 * 100,000, and attention on top.
    assert wanted.flops == pytest.approx(6 * 65e6 * 2.5e9, rel=0.1)
    assert wanted.disk["downloads"] == 657632379 + 918311367 + 80418416 + 38654961
    assert 5e9 < sum(wanted.disk.values()) < 20e9


def test_more_of_everything_needs_more() -> None:
    base, big = configuration("base", "en-fr"), configuration("big", "en-fr")
    corpus = plan.corpus_size(base, prepared=False)
    assert corpus.pairs == 40_836_715
    less, more = (plan.needs(row, corpus, 4096) for row in (base, big))
    assert more.flops > 8 * less.flops
    assert more.memory > 2 * less.memory
    assert more.disk["data/raw"] == less.disk["data/raw"]
    assert plan.needs(base, corpus, 8192).memory > less.memory


def test_a_prepared_corpus_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stats = tmp_path / "stats.json"
    stats.write_text(json.dumps({"pairs": 100, "target_tokens": 1500, "vocabulary": 640}))
    monkeypatch.setattr(plan, "STATS", stats)
    sample = configuration("sample", corpus="sample")
    counted = plan.corpus_size(sample, prepared=True)
    assert (counted.pairs, counted.subwords, counted.vocabulary) == (100, 15.0, 640)
    assert plan.corpus_size(sample, prepared=False).origin.startswith("guessed")


def test_the_sample_is_guessed_within_a_factor_of_three() -> None:
    guess = plan.corpus_size(configuration("sample", corpus="sample"), prepared=False)
    assert 8_000 < guess.pairs < 72_000


def test_the_rate_is_measured_by_real_updates() -> None:
    sample = configuration("sample", corpus="sample")
    rate, device = plan.measured_rate(sample, plan.corpus_size(sample, prepared=False), seconds=0.1)
    assert rate > 1e8
    assert device


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configuration:
    """A repository in which every stage ran with the configuration returned, and nothing changed since."""
    shutil.copyfile(ROOT / "dvc.yaml", tmp_path / "dvc.yaml")
    asked = configuration("sample", corpus="sample")
    monkeypatch.chdir(tmp_path)
    settings = asked.model_dump(mode="json")
    stages: dict[str, Any] = yaml.safe_load((tmp_path / "dvc.yaml").read_text())["stages"]
    locked: dict[str, Any] = {}
    for name, entry in stages.items():
        keys = [key for part in entry["params"] if isinstance(part, dict) for key in part["results/config.yaml"]]
        locked[name] = {"params": {"results/config.yaml": {key: plan.value_at(settings, key) for key in keys}}}
    (tmp_path / "dvc.lock").write_text(yaml.safe_dump({"stages": locked}))
    return asked


def runs(asked: Configuration, status: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(plan, "dvc_status", lambda: status)
    return [name for name, reason in plan.stages_to_run(asked).items() if reason]


def test_nothing_would_run_after_a_finished_run(finished: Configuration, monkeypatch: pytest.MonkeyPatch) -> None:
    assert runs(finished, {}, monkeypatch) == []


def test_a_training_value_reruns_training_and_what_follows(
    finished: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = finished.training.model_copy(update={"updates": 7})
    changed = finished.model_copy(update={"training": training})
    assert runs(changed, {}, monkeypatch) == ["train", "average", "decode", "score", "attention", "report"]


def test_code_of_search_reruns_decoding_and_what_follows(
    finished: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = {"decode": [{"changed deps": {"nmt/search.py": "modified", "models/average": "deleted"}}]}
    assert runs(finished, status, monkeypatch) == ["decode", "score", "report"]


def test_outside_a_repository_dvc_cannot_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="dvc status fails"):
        plan.dvc_status()


def test_too_little_room_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WMT_STATE", str(tmp_path))
    assert plan.tell_room(plan.Needs({"downloads": 0, "data/raw": 1}, 1, 1), links=True)
    assert "NOT ENOUGH" not in capsys.readouterr().out
    assert not plan.tell_room(plan.Needs({"downloads": 0, "data/raw": 2**60}, 1, 1), links=True)
    assert capsys.readouterr().out.count("NOT ENOUGH") == 1
    assert not plan.tell_room(plan.Needs({"downloads": 0, "data/raw": 1}, 2**60, 1), links=True)


def test_an_unknown_row_is_one_sentence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    params = {"row": "bas", "pair": "en-de", "corpus": "wmt14", "seed": 1, "overrides": {}}
    monkeypatch.setattr(resolve, "read_params", lambda: params)
    assert plan.main(["--no-measure"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("plan: ")
    assert told.err.count("\n") == 1
