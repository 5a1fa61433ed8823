"""Score the translations: the validation set by the last weights (Table 3), the test set by the average (Table 2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nmt import hardware
from nmt.common.files import write_json
from nmt.evaluation import bleu
from nmt.parsing import evalb
from pipeline.config.corpora import DataSettings
from pipeline.config.paths import AVERAGE, AVERAGING, LAST, METRICS, RAW, SCORES, TRAINING, TRANSLATIONS, read_json
from pipeline.config.sections import check_versions, load_section

COPIED = ("valid_ppl", "params", "vocabulary", "updates")  # keys that scores.json takes from results/training.json
COMPARED = (
    *("bleu", "bleu_paper_way", "f1", "valid_bleu", "valid_f1", "valid_ppl"),
    *("params", "train_seconds", "train_flops_paper"),
)
"""Numbers of scores.json that metrics.json repeats: DVC shows each of them as a column."""
MEASURES = ("recall", "precision", "complete_match", "average_crossing")  # of EVALB's totals


def f1(data: DataSettings) -> dict[str, Any]:
    """Return EVALB's scores of both sets, and the share of outputs that had to be repaired to be trees."""
    found: dict[str, Any] = {}
    for prefix, role, text, model in (("", "test", data.test, AVERAGE), ("valid_", "valid", data.valid, LAST)):
        gold = RAW / f"{role}.{text.name}.{data.target}"
        parsed = TRANSLATIONS / f"{text.name}.{model.name}.{data.target}"
        # A wrongly tagged comma would drop its sentence: the gold tags say what is punctuation.
        scores = evalb.read(gold, parsed, gold_tags=True)
        path = parsed.with_name(parsed.name + ".repairs.json")
        repairs = read_json(path) if path.exists() else {}
        total = scores.total
        found |= {
            f"{prefix}f1": total.f1,
            f"{prefix}f1_signature": scores.signature,
            f"{prefix}f1_set": f"{text.name}, {total.sentences} lines",
            f"{prefix}f1_low": scores.low,
            f"{prefix}f1_high": scores.high,
            f"{prefix}f1_at_most_{evalb.CUTOFF}_words": scores.short.f1,
            **{f"{prefix}f1_{measure}": getattr(total, measure) for measure in MEASURES},
            f"{prefix}f1_not_scored": total.errors + total.skipped,
            f"{prefix}f1_malformed": repairs.get("malformed trees", 0) / max(1, repairs.get("trees", total.sentences)),
        }
    return found


def translations(data: DataSettings) -> dict[str, Any]:
    """Return BLEU of both sets. The test set is scored once, from the average; nothing is selected on it."""
    test = bleu.read_lines(RAW / f"test.{data.test.name}.{data.target}")
    valid = bleu.read_lines(RAW / f"valid.{data.valid.name}.{data.target}")
    average = bleu.read_lines(TRANSLATIONS / f"{data.test.name}.{AVERAGE.name}.{data.target}")
    last = bleu.read_lines(TRANSLATIONS / f"{data.valid.name}.{LAST.name}.{data.target}")
    scores = bleu.score(average, test, data.target)
    steps = scores["paper_way_steps"]
    valid_bleu, valid_signature = bleu.sacrebleu(last, valid)
    return {
        **{key: scores[key] for key in ("bleu", "bleu_signature", "bleu_low", "bleu_high", "bleu_paper_way")},
        "bleu_set": f"{data.test.name}, {len(test)} lines",
        # Only the intermediate steps: the first one's score is `bleu`, the last one's `bleu_paper_way`.
        **{f"bleu_paper_way_step_{n}": step["bleu"] for n, step in enumerate(steps[1:-1], start=2)},
        "bleu_paper_way_steps": "; ".join(step["step"] for step in steps),
        "chrf": scores["chrf"],
        "chrf_signature": scores["chrf_signature"],
        "valid_bleu": valid_bleu,
        "valid_bleu_signature": valid_signature,
        "valid_bleu_paper_way": bleu.paper_way(last, valid, data.target)[-1][1],
        "valid_bleu_set": f"{data.valid.name}, {len(valid)} lines",
        "valid_bleu_model": "last checkpoint",
    }


def cost(training: Mapping[str, Any]) -> dict[str, Any]:
    """Return the training's cost in FLOPs: the paper's estimate, and operations counted on tokens without padding.

    The utilisation is None where a device's peak is unknown.
    """
    seconds, device = float(training["train_seconds"]), str(training["device"])
    devices = hardware.devices(device, int(training["processes"]))
    times, sustained = training["device_seconds"], training["flops_sustained"]
    known, counted = hardware.on_record(device), float(training["flops_counted"])
    peaks = [each and each.peak(str(training["precision"])) for each in map(hardware.on_record, times)]
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
    training, averaging = read_json(TRAINING), read_json(AVERAGING)
    values = {
        **(f1(data) if data.target == "tree" else translations(data)),
        "bleu_model": averaging["weights"],
        "averaged_checkpoints": averaging["checkpoints"],
        **{key: training[key] for key in COPIED},
        **cost(training),
    }
    write_json(SCORES, values)
    write_json(METRICS, {key: values[key] for key in COMPARED if key in values})
