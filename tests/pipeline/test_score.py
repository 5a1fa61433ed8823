"""The score stage on a few translations, with the numbers it must write."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from nmt import bleu
from nmt.config import InputError
from nmt.flops import hardware
from pipeline import score
from pipeline.config import CONFIG

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


class _Tracker:
    """Nobody: the report hands metrics.json on, since a cached stage would tell nothing."""

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
    local = {"path": "x", "sha256": "0" * 64}
    text = {name: {"name": name, "source": local, "target": local} for name in ("t", "news13", "news14")}
    config = {
        "data": {
            "source": "en",
            "target": "de",
            "archives": [],
            "train": [text["t"]],
            "valid": text["news13"],
            "test": text["news14"],
        },
        "versions": {
            name: importlib.metadata.version(name.replace("_", "-"))
            for name in ("sacremoses", "subword_nmt", "sentencepiece", "sacrebleu")
        },
    }
    _write(str(CONFIG), [yaml.safe_dump(config)])
    _write("data/raw/valid.news13.de", VALID)
    _write("data/raw/test.news14.de", TEST)
    _write("results/translations/news13.last.de", VALID)
    _write("results/translations/news14.average.de", [TEST[0].replace("half", "taugt"), *TEST[1:]])
    score.TRAINING.write_text(json.dumps(TRAINING), encoding="utf-8")


def _metrics() -> dict[str, Any]:
    content = json.loads(score.METRICS.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def test_scores_both_sets_with_set_and_scorer_named() -> None:
    score.run(_Tracker())
    written = _metrics()
    hypotheses = bleu.read_lines(Path("results/translations/news14.average.de"))
    expected, signature = bleu.sacrebleu(hypotheses, TEST)
    assert 50 < expected < 100
    assert (written["bleu"], written["bleu_signature"]) == (expected, signature)
    assert (written["bleu_set"], written["bleu_model"]) == ("news14, 3 lines", "average of the last checkpoints")
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
        **TRAINING, "device": "cpu", "processes": 2, "train_seconds": 10.0, "device_seconds": {"cpu": 10.0},
        "flops_sustained": {"cpu": 1e11},
    }  # fmt: skip
    values = score.cost(cpu)
    assert values["train_flops_paper"] == 1e12
    assert values["devices"] == 1
    assert values["model_flops_utilisation"] is None
    assert values["sustained_flops_source"] == "measured by a matrix product"


def test_a_second_run_writes_the_same_bytes() -> None:
    score.run(_Tracker())
    first = score.METRICS.read_bytes()
    score.run(_Tracker())
    assert score.METRICS.read_bytes() == first


def test_a_missing_translation_line_is_refused() -> None:
    _write("results/translations/news14.average.de", TEST[:2])
    with pytest.raises(InputError, match=r"news14\.average\.de has 2 lines for 3 references"):
        score.run(_Tracker())
    assert not score.METRICS.exists()


def test_an_incomplete_training_record_is_refused() -> None:
    incomplete = {key: value for key, value in TRAINING.items() if key != "flops_counted"}
    score.TRAINING.write_text(json.dumps(incomplete), encoding="utf-8")
    with pytest.raises(InputError, match="has no `flops_counted`"):
        score.run(_Tracker())
    assert not score.METRICS.exists()
