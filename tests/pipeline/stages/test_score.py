"""The score stage on a few translations, with the numbers it must write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from data_stages import configure, data_section

from nmt.config import InputError
from nmt.evaluation import bleu
from nmt.flops import hardware
from pipeline.common.paths import CONFIG
from pipeline.common.settings import DataSettings
from pipeline.stages import score

VALID = ["Das Haus ist alt .", "Wir gehen heute nicht ins Kino ."]
TEST = ["Der gut-gemeinte Rat half nicht .", "Sie kam gestern aus Wien an .", "Es regnet seit drei Tagen ."]
TRAINING = {
    "updates": 300000,
    "params": 213,
    "vocabulary": 37000,
    "train_seconds": 302400.0,
    "processes": 8,
    "device": "Tesla P100-SXM2-16GB",
    "precision": "float32",
    "ppl_valid": 4.33,
    "flops_counted": 1e19,
    "device_seconds": {"Tesla P100-SXM2-16GB": 8 * 302400.0},
    "flops_sustained": {"Tesla P100-SXM2-16GB": 9.5e12},
}
AVERAGING = {"requested": 5, "checkpoints": 2, "updates": "5, 10", "weights": "mean of updates 5, 10"}


class _Tracker:
    """Nobody: the record takes scores.json, since a cached stage would tell nothing."""

    def metrics(self, values: Mapping[str, float], update: int | None = None) -> None:
        raise AssertionError(values)

    def tags(self, values: Mapping[str, str]) -> None:
        raise AssertionError(values)

    def artifact(self, path: Path, folder: str | None = None) -> None:
        raise AssertionError(path)


def _write(path: str, lines: list[str]) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the stages before leave behind."""
    monkeypatch.chdir(tmp_path)
    configure(data_section("t", valid="news13", test="news14"))
    _write("data/raw/valid.news13.de", VALID)
    _write("data/raw/test.news14.de", TEST)
    _write("results/translations/news13.last.de", VALID)
    _write("results/translations/news14.average.de", [TEST[0].replace("half", "taugt"), *TEST[1:]])
    score.TRAINING.write_text(json.dumps(TRAINING), encoding="utf-8")
    score.AVERAGING.write_text(json.dumps(AVERAGING), encoding="utf-8")


def _scores() -> dict[str, Any]:
    content = json.loads(score.SCORES.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def test_scores_both_sets_with_set_and_scorer_named() -> None:
    score.run(_Tracker())
    written = _scores()
    hypotheses = bleu.read_lines(Path("results/translations/news14.average.de"))
    expected, signature = bleu.sacrebleu(hypotheses, TEST)
    assert 50 < expected < 100
    assert (written["bleu"], written["bleu_signature"]) == (expected, signature)
    assert (written["bleu_set"], written["bleu_model"]) == ("news14, 3 lines", "mean of updates 5, 10")
    assert written["averaged_checkpoints"] == 2
    assert written["bleu_low"] < expected <= written["bleu_high"]
    assert written["bleu_paper_way"] > expected
    assert written["bleu_valid"] == pytest.approx(100)
    assert (written["bleu_valid_set"], written["bleu_valid_model"]) == ("news13, 2 lines", "last checkpoint")
    assert 0 < written["chrf"] < 100
    assert (written["ppl_valid"], written["params"], written["updates"]) == (4.33, 213, 300000)
    assert all(not isinstance(value, dict | list) for value in written.values())
    # The first step's score is `bleu`, the last one's `bleu_paper_way`: each number is there once.
    steps = {key for key in written if key.startswith("bleu_paper_way_step")}
    assert steps == {"bleu_paper_way_steps", "bleu_paper_way_step_2", "bleu_paper_way_step_3"}


def test_every_number_stands_under_its_name() -> None:
    score.run(_Tracker())
    of_test = bleu.score(bleu.read_lines(Path("results/translations/news14.average.de")), TEST, "de")
    valid = bleu.score(VALID, VALID, "de")
    steps = [step.bleu for step in of_test.paper_way]
    expected = {
        "bleu": of_test.bleu,
        "bleu_signature": of_test.signature,
        "bleu_set": "news14, 3 lines",
        "bleu_low": of_test.interval.low,
        "bleu_high": of_test.interval.high,
        "bleu_paper_way": steps[3],
        "bleu_paper_way_step_2": steps[1],
        "bleu_paper_way_step_3": steps[2],
        "bleu_paper_way_steps": "sacreBLEU, 13a; Moses tokens; compounds split at hyphens; unicode quotes made plain",
        "chrf": of_test.chrf,
        "chrf_signature": of_test.chrf_signature,
        "bleu_valid": valid.bleu,
        "bleu_valid_signature": valid.signature,
        "bleu_valid_paper_way": valid.bleu_paper_way,
        "bleu_valid_set": "news13, 2 lines",
        "bleu_valid_model": "last checkpoint",
        "bleu_model": "mean of updates 5, 10",
        "averaged_checkpoints": 2,
        "ppl_valid": 4.33,
        "params": 213,
        "vocabulary": 37000,
        "updates": 300000,
        "train_seconds": 302400.0,
        "device": "Tesla P100-SXM2-16GB",
        "devices": 8,
        "precision": "float32",
        "sustained_flops": 9.5e12,
        "sustained_flops_source": score.flops.hardware("Tesla P100").source,
        "train_flops_paper": 8 * 302400 * 9.5e12,
        "train_flops_counted": 1e19,
        "model_flops_utilisation": 1e19 / (302400 * 8 * 10.6e12),
    }
    assert _scores() == expected
    assert len({of_test.bleu, valid.bleu, of_test.chrf, *steps[:3]}) > 3


def test_the_validation_set_is_scored_the_papers_way_too() -> None:
    # The quotes differ, so that the last step changes the score.
    references, translated = ["Das „alte“ Haus ist alt .", VALID[1]], ['Das "alte" Haus ist neu .', VALID[1]]
    _write("data/raw/valid.news13.de", references)
    _write("results/translations/news13.last.de", translated)
    score.run(_Tracker())
    written = _scores()
    assert written["bleu_valid"] == bleu.sacrebleu(translated, references)[0] < 100
    steps = bleu.paper_way(translated, references, "de")
    assert written["bleu_valid_paper_way"] == steps[-1].bleu != steps[-2].bleu


def test_utilisation_is_null_where_one_device_of_two_is_not_on_record() -> None:
    p100 = "Tesla P100-SXM2-16GB"
    moved = {**TRAINING, "device_seconds": {p100: 10.0, "mine": 5.0}, "flops_sustained": {p100: 9.5e12, "mine": 1e12}}
    values = score.cost(moved)
    assert values["model_flops_utilisation"] is None
    assert values["train_flops_paper"] == pytest.approx(10 * 9.5e12 + 5 * 1e12)
    assert score.cost({**moved, "device": "mine"})["sustained_flops"] == 1e12


@pytest.mark.parametrize("library", ["sacrebleu", "sacremoses"])
def test_another_version_of_a_scorer_is_refused(library: str) -> None:
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    config["versions"][library] = "0.0.1"
    _write(str(CONFIG), [yaml.safe_dump(config)])
    with pytest.raises(InputError, match=f"{library} .* is installed, but the run was resolved with 0.0.1"):
        score.run(_Tracker())


def test_cost_of_big_is_the_papers() -> None:
    values = score.cost(TRAINING)
    assert f"{values['train_flops_paper']:.1e}" == "2.3e+19"
    assert values["train_flops_counted"] == 1e19
    assert values["model_flops_utilisation"] == pytest.approx(1e19 / (302400 * 8 * 10.6e12))


def test_a_training_that_moved_costs_what_each_of_its_devices_did() -> None:
    p100, a100 = "Tesla P100-SXM2-16GB", "NVIDIA A100-SXM4-80GB"
    hours, peaks = {p100: 36e3, a100: 3.6e3}, [hardware(name) for name in (p100, a100)]
    moved = {**TRAINING, "device": a100, "device_seconds": hours, "flops_sustained": {p100: 9.5e12, a100: 19.5e12}}
    values = score.cost(moved)
    assert values["train_flops_paper"] == pytest.approx(36e3 * 9.5e12 + 3.6e3 * 19.5e12)
    possible = sum(time * peak.peak("float32") for time, peak in zip(hours.values(), peaks, strict=True))
    assert values["model_flops_utilisation"] == pytest.approx(1e19 / possible)


def test_processes_on_a_cpu_are_one_device_of_no_known_peak() -> None:
    cpu = {
        **TRAINING,
        "device": "cpu",
        "processes": 2,
        "train_seconds": 10.0,
        "device_seconds": {"cpu": 10.0},
        "flops_sustained": {"cpu": 1e11},
    }
    values = score.cost(cpu)
    assert values["train_flops_paper"] == 1e12
    assert values["devices"] == 1
    assert values["model_flops_utilisation"] is None
    assert values["sustained_flops_source"] == "measured by a matrix product"


def test_dvc_compares_a_few_numbers_of_the_scores() -> None:
    score.run(_Tracker())
    compared = json.loads(score.METRICS.read_text(encoding="utf-8"))
    assert {"bleu", "bleu_valid", "ppl_valid", "params", "train_seconds"} <= compared.keys() < _scores().keys()
    assert all(isinstance(value, int | float) and value == _scores()[key] for key, value in compared.items())


def test_a_second_run_writes_the_same_bytes() -> None:
    score.run(_Tracker())
    first = score.SCORES.read_bytes()
    score.run(_Tracker())
    assert score.SCORES.read_bytes() == first


@pytest.mark.parametrize(("name", "lines"), [("news14.average", TEST), ("news13.last", VALID)])
def test_a_missing_or_a_further_translation_is_refused(name: str, lines: list[str]) -> None:
    for wrong in (lines[:-1], [*lines, "mehr"]):
        _write(f"results/translations/{name}.de", wrong)
        message = f"{name}.de has {len(wrong)} lines for {len(lines)} references: run `dvc repro` to translate the set"
        with pytest.raises(InputError, match=message):
            score.run(_Tracker())
    assert not score.SCORES.exists()


@pytest.mark.parametrize(
    ("path", "content", "key", "stage"),
    [
        *((score.TRAINING, TRAINING, key, "train") for key in TRAINING),
        *((score.AVERAGING, AVERAGING, key, "average") for key in ("checkpoints", "weights")),
    ],
)
def test_an_incomplete_record_is_refused(path: Path, content: dict[str, Any], key: str, stage: str) -> None:
    path.write_text(json.dumps({name: value for name, value in content.items() if name != key}), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        score.run(_Tracker())
    assert str(caught.value) == f"{path} has no `{key}`: run `dvc repro --force --single-item {stage}`"
    assert not score.SCORES.exists()


def test_trees_are_scored_by_evalb_and_malformed_ones_reported() -> None:
    gold = ["(S (NP (PRP He)) (VP (VBD ran)) (. .))", "(NP (DT the) (NN dog))"]
    parsed = ["(S (NP (XX He)) (VP (XX ran)) (XX .))", "(S (XX the) (XX dog))"]
    data = data_section("t", valid="dev", test="exam") | {"target": "tree"}
    for name in ("valid.dev", "test.exam"):
        _write(f"data/raw/{name}.tree", gold)
    for name in ("dev.last", "exam.average"):
        _write(f"results/translations/{name}.tree", parsed)
    Path("results/translations/exam.average.tree.repairs.json").write_text('{"trees": 2, "malformed trees": 1}')
    found = score.quality(DataSettings.model_validate(data))
    assert (found["f1"], found["f1_complete_match"], found["f1_malformed"]) == (75.0, 50.0, 0.5)
    assert (found["f1_valid"], found["f1_valid_malformed"]) == (75.0, 0.0)
    assert found["f1_signature"] == "evalb|rules:COLLINS|tags:gold|unscored:excluded|cutoff:40|version:1"
    assert found["f1_set"] == "exam, 2 lines"


def test_the_gold_tags_say_what_is_punctuation() -> None:
    """A parser that writes tags, and takes a comma for a noun, loses nothing by that."""
    data = data_section("t", valid="dev", test="exam") | {"target": "tree"}
    for name in ("valid.dev", "test.exam"):
        _write(f"data/raw/{name}.tree", ["(S (NP (PRP He)) (, ,) (VP (VBD ran)))"])
    for name in ("dev.last", "exam.average"):
        _write(f"results/translations/{name}.tree", ["(S (NP (PRP He)) (NN ,) (VP (VBD ran)))"])
    found = score.quality(DataSettings.model_validate(data))
    assert (found["f1"], found["f1_not_scored"]) == (100.0, 0)
