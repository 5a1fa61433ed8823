"""How fast we translate, against CTranslate2 on the same lines in one run, and whether the translations are the same.

`python -m tests.bench.decoding --model DIR --src FILE [--json]`; `--shape base` gives the base model's shape random
weights instead, with the subwords of DIR. Needs ctranslate2. Ratios count, not times: run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from nmt.evaluation.forced_scoring import score
from nmt.inference.ctranslate2_engine import CTranslate2Engine
from nmt.inference.export import export
from nmt.inference.loading import Models
from nmt.inference.model_folder import load_description, save_model
from nmt.inference.translator import Engine, TorchEngine, Translation, Translator
from nmt.model import Transformer

TIE = 1e-4
"""Log-probabilities closer than this are a tie in float32."""


def with_base_shape(folder: Path, out: Path) -> Path:
    """A folder of the base model's shape with random weights: for speed alone."""
    description = load_description(folder)
    shape = {"N": 6, "d_model": 512, "d_ff": 2048, "h": 8, "d_k": 64, "d_v": 64}
    base = description.model_copy(update={"model": description.model.model_copy(update=shape)})
    torch.manual_seed(1)
    save_model(out, Transformer(base.model, base.vocabulary).state_dict(), base, folder / "subwords")
    return out


def of_one_length(models: Models, lines: list[str]) -> list[str]:
    """The lines that have the commonest number of subwords."""
    lengths = [len(models.encode(line)) for line in lines]
    commonest = Counter(lengths).most_common(1)[0][0]
    return [line for line, length in zip(lines, lengths, strict=True) if length == commonest]


def timed(models: Models, engine: Engine, lines: list[str], changes: dict[str, Any], repeats: int) -> dict[str, Any]:
    """The translations and the best of several times; the first, which warms up, does not count."""
    settings = models.description.search.model_copy(update=changes)
    ready = Translator(models, None, settings, engine)
    list(ready.translations(lines[:64]))
    seconds, found = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        found = list(ready.translations(lines))
        seconds.append(time.perf_counter() - start)
    tokens = sum(len(translation.hypotheses[0].ids) + 1 for translation in found if translation.hypotheses)
    best = min(seconds)
    return {"sentences_per_second": len(lines) / best, "tokens_per_second": tokens / best, "found": found}


def compare(models: Models, ours: list[Translation], theirs: list[Translation]) -> dict[str, Any]:
    """Lines that differ, and for each what our own model says of both translations."""
    different = []
    for one, other in zip(ours, theirs, strict=True):
        if one.pieces and one.hypotheses[0].ids != other.hypotheses[0].ids:
            source = one.pieces[0].ids
            pairs = [(source, [*side.hypotheses[0].ids, 2]) for side in (one, other)]
            mine, its = (scored.log_probability for scored in score(models.members, pairs))
            why = "tie" if abs(mine - its) < TIE else "ours is likelier" if mine > its else "CTranslate2's is likelier"
            different.append({"source": one.source, "ours": one.texts[0], "theirs": other.texts[0],
                              "log_probability": [mine, its], "why": why})  # fmt: skip
    return {"lines": len(ours), "same": len(ours) - len(different), "differences": different}


def measure(options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Speeds of all engines at alpha 0, ours at the model's alpha too, and the agreement of the translations."""
    folder = with_base_shape(options.model, scratch / "base") if options.shape == "base" else options.model
    models = Models([folder], torch.device("cpu"))
    lines = options.src.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    bound = {}
    if options.shape == "base":
        # Random weights never end a sentence: a bound keeps the work that of real sentences. CTranslate2 has one bound
        # for a whole batch, and what goes beyond a sentence's own is searched again.
        bound = {"max_extra": 0}
        lines = of_one_length(models, lines)
    lines = (lines * -(-options.lines // len(lines)))[: options.lines]
    report: dict[str, Any] = {"shape": options.shape, "lines": len(lines), "threads": torch.get_num_threads()}
    engines: dict[str, Engine] = {"ours": TorchEngine(models)}
    for name in ("float32", "int8"):
        export(folder, scratch / name, name)
        engines[f"ctranslate2_{name}"] = CTranslate2Engine(scratch / name, models)
    found = {}
    for name, engine in engines.items():
        for beam in (4, 1):
            key = f"{name}_beam{beam}"
            report[key] = timed(models, engine, lines, {"alpha": 0.0, "beam": beam, **bound}, options.repeats)
            found[key] = report[key].pop("found")
    report["ours_beam4_gnmt"] = timed(models, engines["ours"], lines, {"beam": 4, "alpha": 0.6, **bound},
                                      options.repeats)  # fmt: skip
    del report["ours_beam4_gnmt"]["found"]
    for beam in (4, 1):
        speeds = [report[f"{name}_beam{beam}"]["sentences_per_second"] for name in ("ours", "ctranslate2_float32")]
        report[f"ratio_beam{beam}"] = speeds[0] / speeds[1]
        report[f"agreement_beam{beam}"] = compare(
            models, found[f"ours_beam{beam}"], found[f"ctranslate2_float32_beam{beam}"]
        )
    return report


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.decoding", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, metavar="DIR")
    parser.add_argument("--src", type=Path, required=True, metavar="FILE")
    parser.add_argument("--shape", choices=("model", "base"), default="model")
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp())
    try:
        report = measure(options, scratch)
    finally:
        shutil.rmtree(scratch)
    if options.json:
        json.dump(report, sys.stdout, indent=2, ensure_ascii=False)
        print()
        return
    for name, value in report.items():
        if isinstance(value, dict) and "sentences_per_second" in value:
            speed, tokens = value["sentences_per_second"], value["tokens_per_second"]
            print(f"{name:28s} {speed:8.1f} sentences/s {tokens:8.0f} tokens/s")
        elif isinstance(value, dict):
            print(f"{name:28s} {value['same']} of {value['lines']} lines the same")
            for line in value["differences"]:
                print(f"    {line['why']}: {line['ours']} | {line['theirs']} {line['log_probability']}")
        else:
            print(f"{name:28s} {value}")


if __name__ == "__main__":
    main()
