"""Score the translations: the validation set by the last weights (Table 3), the test set by the average (Table 2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nmt import flops
from nmt.config import InputError
from nmt.evaluation import bleu, evalb
from pipeline.common import stage
from pipeline.common.paths import AVERAGE, AVERAGING, LAST, METRICS, RAW, SCORES, TRAINING, TRANSLATIONS
from pipeline.common.settings import DataSettings, VersionSettings, load_section

COPIED = ("ppl_valid", "params", "vocabulary", "updates")
"""Keys that scores.json takes from results/training.json."""
MEASURED = ("train_seconds", "device", "processes", "precision", "flops_counted", "device_seconds", "flops_sustained")
"""Keys of results/training.json that the cost is computed from."""
AVERAGED = {"weights": "bleu_model", "checkpoints": "averaged_checkpoints"}
"""Keys of results/averaging.json, and their names in scores.json."""
COMPARED = (
    *("bleu", "bleu_paper_way", "f1", "bleu_valid", "f1_valid", "ppl_valid"),
    *("params", "train_seconds", "train_flops_paper"),
)
"""Numbers of scores.json that metrics.json repeats: DVC shows each of them as a column."""


def _translations(set_name: str, model: str, lang: str, references: int) -> list[str]:
    """Return a set's translations by the model `last` or `average`; raise InputError for another number of lines."""
    path = TRANSLATIONS / f"{set_name}.{model}.{lang}"
    lines = bleu.read_lines(path)
    if len(lines) != references:
        raise InputError(
            f"{path} has {len(lines)} lines for {references} references: run `dvc repro` to translate the set again"
        )
    return lines


def _read_record(path: Path, keys: Iterable[str], by: str) -> dict[str, Any]:
    """Return the record that the stage `by` wrote; raise InputError where a key is missing."""
    content = stage.read_json(path)
    if missing := [key for key in keys if key not in content]:
        raise InputError(f"{path} has no `{missing[0]}`: run `dvc repro --force --single-item {by}`")
    return content


def quality(data: DataSettings) -> dict[str, Any]:
    """Return the scores of both sets. The test set is scored once, from the average; nothing is selected on it."""
    return SCORERS.get(data.target, _bleu)(data)


def _f1(data: DataSettings) -> dict[str, Any]:
    """Return EVALB's scores of trees, and the share of outputs that had to be repaired to be trees."""
    found: dict[str, Any] = {}
    for prefix, role, name, model in (
        ("", "test", data.test.name, AVERAGE),
        ("_valid", "valid", data.valid.name, LAST),
    ):
        gold = RAW / f"{role}.{name}.{data.target}"
        parsed = TRANSLATIONS / f"{name}.{model.name}.{data.target}"
        # A wrongly tagged comma would drop its sentence: the gold tags say what is punctuation.
        scores = evalb.read(gold, parsed, gold_tags=True)
        path = parsed.with_name(parsed.name + ".repairs.json")
        repairs = stage.read_json(path) if path.exists() else {}
        total = scores.total
        found |= {
            f"f1{prefix}": total.f1,
            f"f1{prefix}_signature": scores.signature,
            f"f1{prefix}_set": f"{name}, {total.sentences} lines",
            f"f1{prefix}_low": scores.low,
            f"f1{prefix}_high": scores.high,
            f"f1{prefix}_at_most_{evalb.COLLINS.cutoff}_words": scores.short.f1,
            f"f1{prefix}_recall": total.recall,
            f"f1{prefix}_precision": total.precision,
            f"f1{prefix}_complete_match": total.complete_match,
            f"f1{prefix}_average_crossing": total.average_crossing,
            f"f1{prefix}_not_scored": total.errors + total.skipped,
            f"f1{prefix}_malformed": repairs.get("malformed trees", 0) / max(1, repairs.get("trees", total.sentences)),
        }
    return found


def _bleu(data: DataSettings) -> dict[str, Any]:
    """Return BLEU of both sets."""
    test = bleu.read_lines(RAW / f"test.{data.test.name}.{data.target}")
    valid = bleu.read_lines(RAW / f"valid.{data.valid.name}.{data.target}")
    scores = bleu.score(_translations(data.test.name, AVERAGE.name, data.target, len(test)), test, data.target)
    last = _translations(data.valid.name, LAST.name, data.target, len(valid))
    valid_bleu, valid_signature = bleu.sacrebleu(last, valid)
    return {
        "bleu": scores.bleu,
        "bleu_signature": scores.signature,
        "bleu_set": f"{data.test.name}, {len(test)} lines",
        "bleu_low": scores.interval.low,
        "bleu_high": scores.interval.high,
        "bleu_paper_way": scores.bleu_paper_way,
        # Only the intermediate steps: the first one's score is `bleu`, the last one's `bleu_paper_way`.
        **{f"bleu_paper_way_step_{n}": step.bleu for n, step in enumerate(scores.paper_way[1:-1], start=2)},
        "bleu_paper_way_steps": "; ".join(step.name for step in scores.paper_way),
        "chrf": scores.chrf,
        "chrf_signature": scores.chrf_signature,
        "bleu_valid": valid_bleu,
        "bleu_valid_signature": valid_signature,
        "bleu_valid_paper_way": bleu.paper_way(last, valid, data.target)[-1].bleu,
        "bleu_valid_set": f"{data.valid.name}, {len(valid)} lines",
        "bleu_valid_model": "last checkpoint",
    }


SCORERS = {"tree": _f1}
"""How a target that is no language is scored; every other target by BLEU."""


def cost(training: Mapping[str, Any]) -> dict[str, Any]:
    """Return the training's cost in FLOPs: the paper's estimate, and operations counted on tokens without padding.

    The utilisation is None where a device's peak is unknown.
    """
    seconds, device = float(training["train_seconds"]), str(training["device"])
    devices = flops.devices(device, int(training["processes"]))
    times, sustained = training["device_seconds"], training["flops_sustained"]
    known, counted = flops.hardware(device), float(training["flops_counted"])
    peaks = [each and each.peak(str(training["precision"])) for each in map(flops.hardware, times)]
    possible = sum(time * peak for time, peak in zip(times.values(), peaks, strict=True) if peak)
    return {
        "train_seconds": seconds,
        "device": device,
        "devices": devices,
        "precision": training["precision"],
        "sustained_flops": sustained[device],
        "sustained_flops_source": "measured by a matrix product" if known is None else known.source,
        "train_flops_paper": sum(flops.paper_cost(times[name], 1, sustained[name]) for name in times),
        "train_flops_counted": counted,
        "model_flops_utilisation": counted / possible if all(peaks) else None,
    }


def run(tracker: stage.Tracker) -> None:
    """Write results/scores.json, and the numbers of it that DVC compares as results/metrics.json.

    The record of the run takes them from the files, so that a cached `score` is recorded too.
    """
    data = load_section("data", DataSettings)
    versions = load_section("versions", VersionSettings)
    stage.check_versions({"sacrebleu": versions.sacrebleu, "sacremoses": versions.sacremoses})
    training = _read_record(TRAINING, (*COPIED, *MEASURED), "train")
    averaging = _read_record(AVERAGING, AVERAGED, "average")
    values = {
        **quality(data),
        **{name: averaging[key] for key, name in AVERAGED.items()},
        **{key: training[key] for key in COPIED},
        **cost(training),
    }
    stage.write_json(SCORES, values)
    stage.write_json(METRICS, {key: values[key] for key in COMPARED if key in values})
