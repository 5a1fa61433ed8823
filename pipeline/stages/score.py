"""Score the translations: the validation set by the last weights (Table 3), the test sets by the average (Table 2)."""

from collections.abc import Mapping
from typing import Any

from nmt import hardware
from nmt.common.files import write_json
from nmt.evaluation.scoring import Output, scorer_of
from nmt.task import further_scores
from pipeline.config.corpora import DataSettings
from pipeline.config.paths import AVERAGE, AVERAGING, LAST, METRICS, SCORES, TRAINING, raw, read_json, translation
from pipeline.config.sections import ScoringSettings, check_versions, load_section

COPIED = ("valid_ppl", "params", "vocabulary", "updates")  # keys that scores.json takes from results/training.json
COMPARED = (
    *("bleu", "bleu_paper_way", "bleu_lowercased_moses", "chrf", "f1", "valid_bleu", "valid_chrf", "valid_f1"),
    *("valid_ppl", "params", "train_seconds", "train_flops_paper"),
)
"""Numbers of scores.json that metrics.json repeats: DVC shows each of them as a column."""


def cost(training: Mapping[str, Any]) -> dict[str, Any]:
    """Return the training's cost in FLOPs: the paper's estimate, and operations counted on tokens without padding.

    The utilisation is None where a device's peak is unknown.
    """
    seconds, device = float(training["train_seconds"]), str(training["device"])
    devices = hardware.devices(device, int(training["processes"]))
    times, sustained = training["device_seconds"], training["flops_sustained"]
    known, counted = hardware.data_sheet(device), float(training["flops_counted"])
    peaks = [processor and processor.peak(str(training["precision"])) for processor in map(hardware.data_sheet, times)]
    possible = sum(time * peak for time, peak in zip(times.values(), peaks, strict=True) if peak)
    return {
        "train_seconds": seconds,
        "device": device,
        "devices": devices,
        "precision": training["precision"],
        "sustained_flops": sustained[device],
        "sustained_flops_source": "measured by a matrix product" if known is None else known.source,
        "train_flops_paper": sum(times[name] * sustained[name] for name in times),
        "train_flops_counted": counted,
        "model_flops_utilisation": counted / possible if all(peaks) else None,
    }


def run() -> None:
    """Write results/scores.json, and the numbers of it that DVC compares as results/metrics.json."""
    data = load_section("data", DataSettings)
    check_versions("sacrebleu", "sacremoses")
    tests = (("test", text.name, AVERAGE) for text in data.test)
    valid, test, *others = (
        Output(name, raw(role, name, data.target), translation(name, model, data.target))
        for role, name, model in (("valid", data.valid.name, LAST), *tests)
    )
    training, averaging = read_json(TRAINING), read_json(AVERAGING)
    scorer = scorer_of(data.target, load_section("scoring", ScoringSettings).tokenize)
    values = {
        **scorer.scores(test, valid),
        "bleu_model": averaging["weights"],
        "averaged_checkpoints": averaging["checkpoints"],
        **{key: training[key] for key in COPIED},
        **cost(training),
    }
    if others:
        values["sets"] = {test_set.name: scorer.scores_of_set(test_set) for test_set in others}
    write_json(SCORES, values)
    write_json(METRICS, {**{key: values[key] for key in COMPARED if key in values}, **further_scores(values)})
