"""The score stage on a few translations, with the numbers it must write."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from clones import ROOT
from data_stages import configure, data_section
from text_lines import write_lines

from nmt.evaluation import bleu
from nmt.evaluation.scoring import Output, scorer_of
from nmt.hardware import data_sheet
from pipeline.stages import score

VALID = ["Das „alte“ Haus ist alt .", "Wir gehen heute nicht ins Kino ."]
LAST = ['Das "alte" Haus ist neu .', VALID[1]]
TEST = ["Der gut-gemeinte Rat half nicht .", "Sie kam gestern aus Wien an .", "Es regnet seit drei Tagen ."]
AVERAGE = [TEST[0].replace("half", "taugt"), *TEST[1:]]
P100 = "Tesla P100-SXM2-16GB"
TRAINING = {
    "updates": 300000, "params": 213, "vocabulary": 37000, "train_seconds": 302400.0, "valid_ppl": 4.33,
    "processes": 8, "device": P100, "precision": "float32", "flops_counted": 1e19,
    "device_seconds": {P100: 8 * 302400.0}, "flops_sustained": {P100: 9.5e12},
}  # fmt: skip
AVERAGING = {"checkpoints": 2, "weights": "mean of updates 5, 10"}


@pytest.fixture(autouse=True)
def repository(here: Path) -> None:
    """What the stages before leave behind."""
    configure(data_section("t", valid="news13", test="news14"), scoring={"tokenize": None})
    write_lines(Path("data/raw/valid.news13.de"), VALID)
    write_lines(Path("data/raw/test.news14.de"), TEST)
    write_lines(Path("results/translations/news13.last.de"), LAST)
    write_lines(Path("results/translations/news14.average.de"), AVERAGE)
    score.TRAINING.write_text(json.dumps(TRAINING), encoding="utf-8")
    score.AVERAGING.write_text(json.dumps(AVERAGING), encoding="utf-8")


def _scores() -> dict[str, Any]:
    return json.loads(score.SCORES.read_text(encoding="utf-8"))


def test_a_setting_chooses_sacrebleus_tokenizer() -> None:
    configure(data_section("t", valid="news13", test="news14"), scoring={"tokenize": "char"})
    score.run()
    found = _scores()
    assert found["bleu"] == bleu.sacrebleu(AVERAGE, TEST, "", "char")[0]
    assert found["valid_bleu"] == bleu.sacrebleu(LAST, VALID, "", "char")[0]
    assert found["bleu_paper_way_steps"].startswith("sacreBLEU, char; Moses tokens; "), "the first step is `bleu`"
    assert all("|tok:char|" in found[key] for key in ("bleu_signature", "valid_bleu_signature"))
    scorer = scorer_of("de", "char")
    compared = scorer.compare(VALID, LAST, VALID)
    assert compared.difference == pytest.approx(found["valid_bleu"] - 100)
    assert scorer.by_length(VALID, LAST, VALID)["0 to 10"] == (2, found["valid_bleu"])


def test_every_number_stands_under_its_name() -> None:
    score.run()
    of_test = bleu.score(AVERAGE, TEST, "de")
    valid = bleu.score(LAST, VALID, "de")
    steps = [step["bleu"] for step in of_test["paper_way_steps"]]
    same_key = ("bleu", "bleu_signature", "bleu_low", "bleu_high", "chrf", "chrf_signature")
    copied = ("valid_ppl", "params", "vocabulary", "updates", "train_seconds", "device", "precision")
    expected = {
        **{key: of_test[key] for key in same_key},
        **{f"valid_{key}": valid[key] for key in ("bleu", "bleu_signature", "bleu_paper_way")},
        **{key: TRAINING[key] for key in copied},
        "bleu_set": "news14, 3 lines", "valid_bleu_set": "news13, 2 lines",
        "bleu_paper_way": steps[3], "bleu_paper_way_step_2": steps[1], "bleu_paper_way_step_3": steps[2],
        "bleu_paper_way_steps": "sacreBLEU, 13a; Moses tokens; compounds split at hyphens; unicode quotes made plain",
        "valid_bleu_model": "last checkpoint", "bleu_model": "mean of updates 5, 10", "averaged_checkpoints": 2,
        "devices": 8, "sustained_flops": 9.5e12, "sustained_flops_source": data_sheet("Tesla P100").source,
        "train_flops_paper": 8 * 302400 * 9.5e12, "train_flops_counted": 1e19,
        "model_flops_utilisation": 1e19 / (302400 * 8 * 10.6e12),
    }  # fmt: skip
    assert _scores() == expected
    assert f"{expected['train_flops_paper']:.1e}" == "2.3e+19", "the paper's cost of big"
    assert valid["bleu"] < valid["paper_way_steps"][-2]["bleu"] != valid["bleu_paper_way"]
    assert len({of_test["bleu"], valid["bleu"], of_test["chrf"], *steps[:3]}) > 3


def test_a_training_that_moved_costs_what_each_of_its_devices_did() -> None:
    a100 = "NVIDIA A100-SXM4-80GB"
    hours, peaks = {P100: 36e3, a100: 3.6e3}, [data_sheet(name) for name in (P100, a100)]
    moved = {**TRAINING, "device": a100, "device_seconds": hours, "flops_sustained": {P100: 9.5e12, a100: 19.5e12}}
    values = score.cost(moved)
    assert values["train_flops_paper"] == pytest.approx(36e3 * 9.5e12 + 3.6e3 * 19.5e12)
    possible = sum(time * peak.peak("float32") for time, peak in zip(hours.values(), peaks, strict=True))
    assert values["model_flops_utilisation"] == pytest.approx(1e19 / possible)


def test_utilisation_is_null_where_a_device_is_not_on_record() -> None:
    moved = {**TRAINING, "device_seconds": {P100: 10.0, "mine": 5.0}, "flops_sustained": {P100: 9.5e12, "mine": 1e12}}
    values = score.cost({**moved, "device": "mine"})
    assert (values["model_flops_utilisation"], values["sustained_flops"]) == (None, 1e12)
    assert values["train_flops_paper"] == pytest.approx(10 * 9.5e12 + 5 * 1e12)
    # All processes on a CPU are one device.
    cpu = {"device": "cpu", "processes": 2, "device_seconds": {"cpu": 10.0}, "flops_sustained": {"cpu": 1e11}}
    values = score.cost({**TRAINING, **cpu})
    assert (values["train_flops_paper"], values["devices"], values["model_flops_utilisation"]) == (1e12, 1, None)
    assert values["sustained_flops_source"] == "measured by a matrix product"


def test_dvc_compares_a_few_numbers_of_the_scores() -> None:
    score.run()
    compared = json.loads(score.METRICS.read_text(encoding="utf-8"))
    assert {"bleu", "valid_bleu", "valid_ppl", "params", "train_seconds"} <= compared.keys() < _scores().keys()
    assert all(isinstance(value, int | float) and value == _scores()[key] for key, value in compared.items())
    assert yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]["score"]["metrics"] == [str(score.METRICS)]


def test_trees_are_scored_by_evalb_and_malformed_ones_reported() -> None:
    gold = ["(S (NP (PRP He)) (VP (VBD ran)) (. .))", "(NP (DT the) (NN dog))"]
    # Gold tags replace the parser's: a full stop that it tagged as a noun costs nothing.
    parsed = ["(S (NP (XX He)) (VP (XX ran)) (NN .))", "(S (XX the) (XX dog))"]
    Path("results/translations/exam.tree.repairs.json").write_text('{"trees": 2, "malformed trees": 1}')
    outputs = []
    for name in ("exam", "dev"):
        outputs.append(Output(name, Path(f"data/raw/{name}.tree"), Path(f"results/translations/{name}.tree")))
        write_lines(outputs[-1].references, gold)
        write_lines(outputs[-1].path, parsed)
    values = scorer_of("tree").scores(*outputs)
    assert (values["f1"], values["f1_complete_match"], values["f1_malformed"]) == (75.0, 50.0, 0.5)
    assert (values["valid_f1"], values["valid_f1_malformed"]) == (75.0, 0.0)
    assert values["f1_signature"] == "evalb|rules:COLLINS|tags:gold|unscored:excluded|cutoff:40|version:1"
    assert values["f1_set"] == "exam, 2 lines"
