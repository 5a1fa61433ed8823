"""How fast we translate, against CTranslate2 on the same lines in one run, and whether the translations are the same.

`python -m tests.bench.decoding --model DIR --src FILE [--ref FILE] [--json]`. `--shape small` and `--shape base`
give random weights of these rows' shapes instead, with the subwords of DIR, or without DIR and FILE those of WMT-like
text. Needs ctranslate2. The engines take turns: ratios count, not times. With `--ref`, BLEU of all engines. With `--map
SRC TGT`, tokenised training text, and with a shape alone, CTranslate2's int8 model also runs with a vocabulary map.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import sacrebleu
import torch

from nmt.deployment.export import export
from nmt.evaluation.forced_scoring import score
from nmt.ids import EOS, UNK
from nmt.inference.engine import Engine
from nmt.inference.loading import LoadedModel
from nmt.inference.model_folder import load_description, save_model
from nmt.inference.quantization import quantize
from nmt.inference.translator import Translation, Translator
from nmt.model import Transformer
from nmt.text.parallel_text import read_lines
from nmt.text.subwords import Subwords
from tests.bench import growth
from tests.bench.conditions import announce, conditions
from tests.bench.ctranslate2_engine import CTranslate2Engine

TIE = 1e-4  # log-probabilities closer than this are a tie in float32
SHAPES = {
    "small": {"N": 3, "d_model": 256, "d_ff": 1024, "h": 4, "d_k": 64, "d_v": 64},
    "base": {"N": 6, "d_model": 512, "d_ff": 2048, "h": 8, "d_k": 64, "d_v": 64},
}
LIKE_PAIRS, LIKE_MERGES = 5000, 8000  # WMT-like text for a vocabulary of a size like row small's
OURS, QUANTIZED = "ours_float32", "ours_int8"
COMMON, CANDIDATES = 50, 20
"""Target subwords that a vocabulary map allows for every sentence, and for each subword of its source."""


def with_shape(folder: Path, shape: str, out: Path) -> Path:
    """A folder of the row's shape with random weights: for speed alone."""
    description = load_description(folder)
    shaped = description.model_copy(update={"model": description.model.model_copy(update=SHAPES[shape])})
    torch.manual_seed(1)
    save_model(out, Transformer(shaped.model, shaped.vocabulary).state_dict(), shaped, folder / "subwords")
    return out


def of_one_length(loaded: LoadedModel, lines: list[str]) -> list[str]:
    """The lines that have the commonest number of subwords."""
    lengths = [len(loaded.encode(line)) for line in lines]
    commonest = Counter(lengths).most_common(1)[0][0]
    return [line for line, length in zip(lines, lengths, strict=True) if length == commonest]


class WithMap(CTranslate2Engine):
    """CTranslate2 that considers for a sentence only the target subwords in the file vmap.txt of its folder."""

    def __init__(self, folder: Path, loaded: LoadedModel) -> None:
        super().__init__(folder, loaded)
        self.translator = SimpleNamespace(translate_batch=partial(self.translator.translate_batch, use_vmap=True))


def write_map(subwords: Subwords, sides: Sequence[Path], path: Path) -> None:
    """Write a vocabulary map: for each source subword the target subwords that its lines have most often.

    A count is divided by that of the target subword in all lines; what occurs once is left out.
    """
    everywhere: Counter[int] = Counter()
    beside: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for lines in zip(*map(read_lines, sides), strict=True):
        source, target = (set(subwords.encode(line)) for line in lines)
        everywhere.update(target)
        for token in source:
            beside[token].update(target)
    symbols = subwords.symbols(range(subwords.used_rows))
    allowed = {"": [UNK, EOS, *(token for token, _ in everywhere.most_common(COMMON))]}
    for token, counts in beside.items():
        rated = {other: count / everywhere[other] for other, count in counts.items() if count > 1}
        allowed[symbols[token]] = sorted(rated, key=rated.__getitem__)[-CANDIDATES:]
    entries = (f"{symbol}\t{' '.join(symbols[token] for token in tokens)}\n" for symbol, tokens in allowed.items())
    path.write_text("".join(entries), encoding="utf-8")


def timed(engines: Mapping[str, Translator], lines: list[str], repeats: int) -> dict[str, dict[str, Any]]:
    """For each engine its translations and speed: the median of `repeats` and the slowest and fastest."""
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    found: dict[str, list[Translation]] = {}
    for ready in engines.values():
        list(ready.translations(lines[:64]))  # Warms up.
    for _ in range(repeats):
        for name, ready in engines.items():
            start = time.perf_counter()
            found[name] = list(ready.translations(lines))
            seconds[name].append(time.perf_counter() - start)
    return {
        name: {
            "sentences_per_second": len(lines) / median(times),
            "slowest": len(lines) / max(times),
            "fastest": len(lines) / min(times),
            "found": found[name],
        }
        for name, times in seconds.items()
    }


def compare(loaded: LoadedModel, ours: list[Translation], theirs: list[Translation]) -> dict[str, Any]:
    """Lines that differ, and for each what our own model says of both translations."""
    different = []
    for one, other in zip(ours, theirs, strict=True):
        if one.pieces and one.hypotheses[0].ids != other.hypotheses[0].ids:
            source = one.pieces[0].ids
            pairs = [(source, [*side.hypotheses[0].ids, 2]) for side in (one, other)]
            mine, its = (scored.log_probability for scored in score(loaded.transformer, pairs))
            why = "tie" if abs(mine - its) < TIE else "ours is likelier" if mine > its else "CTranslate2's is likelier"
            different.append({"source": one.source, "ours": one.texts[0], "theirs": other.texts[0],
                              "log_probability": [mine, its], "why": why})  # fmt: skip
    return {"lines": len(ours), "same": len(ours) - len(different), "differences": different}


def measure(options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Speeds of all engines at alpha 0, ratios to the faster of CTranslate2's, and the agreement of translations."""
    folder = options.model
    if options.shape != "model":
        folder = with_shape(options.model, options.shape, scratch / "shaped")
    loaded, quantized = (LoadedModel(folder, torch.device("cpu")) for _ in range(2))
    quantize(quantized.transformer)
    lines = options.src.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    bound = {}
    if options.shape != "model":
        # Random weights never end a sentence: a bound keeps the work that of real sentences. CTranslate2 has one bound
        # for a whole batch, and what goes beyond a sentence's own is searched again.
        bound = {"max_extra": 0}
        lines = of_one_length(loaded, lines)
    lines = (lines * -(-options.lines // len(lines)))[: options.lines]
    report: dict[str, Any] = {"shape": options.shape, "lines": len(lines), **conditions()}
    engines: dict[str, Engine] = {OURS: Engine(loaded), QUANTIZED: Engine(quantized)}
    for name in ("float32", "int8"):
        export(folder, scratch / name, name)
        engines[f"ctranslate2_{name}"] = CTranslate2Engine(scratch / name, loaded)
    if options.map:
        write_map(loaded.subwords, options.map, scratch / "int8/vmap.txt")
        engines["ctranslate2_int8_map"] = WithMap(scratch / "int8", loaded)
    for beam in (4, 1):
        settings = loaded.description.search.model_copy(update={"alpha": 0.0, "beam": beam, **bound})
        ready = {name: Translator(loaded, None, settings, engine) for name, engine in engines.items()}
        measured = timed(ready, lines, options.repeats)
        by_engine = {name: values.pop("found") for name, values in measured.items()}
        report |= {f"{name}_beam{beam}": values for name, values in measured.items()}
        speed = {name: values["sentences_per_second"] for name, values in measured.items()}
        theirs = max(speed["ctranslate2_float32"], speed["ctranslate2_int8"])
        if options.map:
            report[f"{QUANTIZED}_beam{beam}_ratio_to_map"] = round(speed[QUANTIZED] / speed["ctranslate2_int8_map"], 3)
            report[f"map_agreement_beam{beam}"] = compare(
                loaded, by_engine["ctranslate2_int8"], by_engine["ctranslate2_int8_map"]
            )
        report |= {f"{name}_beam{beam}_ratio": round(speed[name] / theirs, 3) for name in (OURS, QUANTIZED)}
        report[f"agreement_beam{beam}"] = compare(loaded, by_engine[OURS], by_engine["ctranslate2_float32"])
        if options.ref:
            reference = options.ref.read_text(encoding="utf-8").removesuffix("\n").split("\n")
            for name, translations in by_engine.items():
                texts = [translation.texts[0] for translation in translations]
                score = sacrebleu.corpus_bleu(texts, [reference[: len(texts)]]).score
                report[f"{name}_beam{beam}_bleu"] = round(score, 2)
    return report


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.decoding", description=__doc__)
    parser.add_argument("--model", type=Path, metavar="DIR")
    parser.add_argument("--src", type=Path, metavar="FILE")
    parser.add_argument("--shape", choices=("model", *SHAPES), default="model")
    parser.add_argument("--ref", type=Path, metavar="FILE")
    parser.add_argument("--map", nargs=2, type=Path, metavar=("SRC", "TGT"))
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if (options.model is None) != (options.src is None) or (options.model is None and options.shape == "model"):
        parser.error("give --model and --src, or --shape small or base")
    announce(parser.prog)
    scratch = Path(tempfile.mkdtemp())
    try:
        if options.model is None:
            growth.write_text_and_model(scratch / "like", LIKE_PAIRS, LIKE_MERGES)
            options.model, options.src = scratch / "like/model", scratch / "like/data/raw/train.like.en"
            options.map = [scratch / f"like/data/tokenized/train.{side}" for side in ("en", "de")]
        report = measure(options, scratch)
    finally:
        shutil.rmtree(scratch)
    if options.json:
        json.dump(report, sys.stdout, indent=2, ensure_ascii=False)
        print()
        return
    for name, value in report.items():
        if isinstance(value, dict) and "sentences_per_second" in value:
            spread = f"{value['slowest']:.1f} to {value['fastest']:.1f}"
            print(f"{name:28s} {value['sentences_per_second']:8.1f} sentences/s ({spread})")
        elif isinstance(value, dict):
            print(f"{name:28s} {value['same']} of {value['lines']} lines the same")
            for line in value["differences"]:
                print(f"    {line['why']}: {line['ours']} | {line['theirs']} {line['log_probability']}")
        else:
            print(f"{name:28s} {value}")


if __name__ == "__main__":
    main()
