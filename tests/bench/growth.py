"""How time and memory grow with the number of lines: python -m tests.bench.growth

WMT-like text (wmt_like.py) of `--pairs` pairs, 4 and 16 times as many goes through tokenize, learn_subwords and
binarize; one pass of updates trains a small model on it; a fifth as many lines are translated. Each step has a process
and a core of its own, the sizes take turns. Counted: processor time, which a busy machine hardly changes, without the
start of the process; the most memory that the process held. Exponents, of time without what a step does once: 1 is
linear, 0 flat.
"""

import argparse
import importlib
import json
import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nmt.inference.model_folder import ModelDescription, save_model
from nmt.inference.settings import SearchSettings
from nmt.inference.translator import Translator
from nmt.model import Transformer
from nmt.text.settings import TokenizerSettings
from nmt.text.subwords import load
from nmt.training import loop
from nmt.training.distributed import World
from nmt.training.settings import Job
from pipeline.config import paths
from tests.bench import training
from tests.bench.conditions import announce, conditions, spread
from tests.bench.preprocessing import cpu_seconds, peak_memory, prepare

FACTORS = (1, 4, 16)
MODEL = {"N": 1, "d_model": 64, "d_ff": 256, "h": 2, "d_k": 32, "d_v": 32}
"""A small model: what grows with the lines is not the arithmetic of one sentence."""
UPDATE = 2000  # target subwords of an update
HELD_OUT = 200  # pairs of the validation and of the test set: their work is the same for every size
TRANSLATED = 5  # one line in so many is translated
STEPS = ("tokenize", "learn_subwords", "binarize", "train", "translate")
PRELOADED = [
    "nmt.training.loop", "nmt.inference.translator", "tests.bench.preprocessing", "tests.bench.training",
    "pipeline.stages.tokenize", "pipeline.stages.binarize",
]  # fmt: skip


def tokens(folder: Path) -> int:
    """Target subwords of the binned corpus."""
    return int(json.loads((folder / paths.BINNED / "stats.json").read_text(encoding="utf-8"))["target_tokens"])


def train(folder: Path) -> None:
    """Train one pass over the corpus in this process."""
    settings = argparse.Namespace(
        row="small", pair="en-de", updates=max(1, round(tokens(folder) / UPDATE)), tokens=UPDATE, shards=1,
        precision="float32",
    )  # fmt: skip
    job = training.job(settings, load(folder / paths.SUBWORDS).size, folder / paths.BINNED)
    job["model"] |= MODEL
    state = folder / f"state-{time.monotonic_ns()}"
    state.mkdir()
    loop.train(Job.model_validate(job), state, World(0, 1, torch.device("cpu")))


def translate(folder: Path) -> None:
    """Translate the first lines with random weights and greedy search: the work of a line is its length's."""
    lines = sum(1 for _ in (folder / "data/raw/train.like.en").open("rb")) // TRANSLATED
    with (folder / "data/raw/train.like.en").open(encoding="utf-8", newline="\n") as file:
        text = (line.removesuffix("\n") for _, line in zip(range(lines), file, strict=False))
        for _ in Translator(folder / "model").translate(text):
            pass


def write_model(folder: Path) -> None:
    """Write a model folder with random weights for the subwords of the corpus."""
    size = load(folder / paths.SUBWORDS).size
    settings = argparse.Namespace(row="small", pair="en-de", updates=1, tokens=1, shards=1, precision="float32")
    model = training.job(settings, size, folder)["model"] | MODEL
    description = ModelDescription.model_validate({
        "source": "en", "target": "de", "vocabulary": size, "model": model, "origin": {},
        "tokenizer": TokenizerSettings(tokenizer="moses", normalize_punctuation=True, aggressive_hyphens=False),
        "search": SearchSettings(beam=1, alpha=0.0, max_extra=0, stop="exact"),
    })  # fmt: skip
    torch.manual_seed(1)
    weights = Transformer(description.model, size).state_dict()
    save_model(folder / "model", weights, description, folder / paths.SUBWORDS)


def write_text_and_model(folder: Path, pairs: int, merges: int) -> None:
    """Write WMT-like text to `folder`, with subwords and a model folder of random weights."""
    in_child(prepare, folder, pairs, merges, HELD_OUT)
    for name in ("tokenize", "learn_subwords"):
        in_child(step, name, folder)
    in_child(write_model, folder)


def step(name: str, folder: Path) -> dict[str, float]:
    """Run a step in this process; return its processor time and the process' peak memory."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    os.chdir(folder)
    if name in ("train", "translate"):
        work: Callable[[], object] = {"train": train, "translate": translate}[name].__get__(folder)
    else:
        work = importlib.import_module(f"pipeline.stages.{name}").run
    before = cpu_seconds()
    work()
    return {"seconds": cpu_seconds() - before, "megabytes": peak_memory() / 1e6}


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a new process: its peak of memory is its own."""
    # Forked from a server that has imported everything and done nothing: all processes begin alike.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(function, *arguments).result()


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of log(value) over log(size)."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def growing_exponent(values: Sequence[float]) -> float:
    """The p of value = a + b size^p; a is what a step does once, whatever the size. NaN where a larger size took less.

    Sizes grow by one factor, so differences of neighbours do by factor^p.
    """
    first, second = values[1] - values[0], values[2] - values[1]
    return math.log(second / first) / math.log(FACTORS[1]) if first > 0 and second > 0 else math.nan


def measure(folder: Path, pairs: int, merges: int, rounds: int) -> dict[str, Any]:
    """Every step at every size, the sizes in turn."""
    os.environ["WMT_EXECUTOR"] = ""
    sizes = [factor * pairs for factor in FACTORS]
    folders = [folder / str(size) for size in sizes]
    for size, place in zip(sizes, folders, strict=True):
        in_child(prepare, place, size, merges, HELD_OUT)
    runs_by_step: dict[str, list[list[dict[str, float]]]] = {name: [[] for _ in sizes] for name in STEPS}
    for number in range(rounds):
        for place, index in zip(folders, range(len(sizes)), strict=True):
            for name in STEPS:
                if name == "translate" and number == 0:
                    in_child(write_model, place)
                runs_by_step[name][index].append(in_child(step, name, place))
    steps = {}
    for name, runs_by_size in runs_by_step.items():
        seconds = [spread([run["seconds"] for run in runs]) for runs in runs_by_size]
        megabytes = [max(run["megabytes"] for run in runs) for runs in runs_by_size]
        steps[name] = {
            "seconds": seconds,
            "megabytes": megabytes,
            "exponents": {
                "seconds": round(growing_exponent([value["median"] for value in seconds]), 2),
                "megabytes": round(exponent(sizes, megabytes), 2),
            },
        }
    return {
        **conditions(),
        "pairs": sizes,
        "updates": [max(1, round(tokens(place) / UPDATE)) for place in folders],
        "translated": [size // TRANSLATED for size in sizes],
        "rounds": rounds,
        "steps": steps,
    }


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Processor time and peak memory over pairs, on logarithmic axes; dashes: linear."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    sizes = report["pairs"]
    for axes, key, unit in zip(figure.subplots(1, 2), ("seconds", "megabytes"), ("s", "MB"), strict=True):
        for name, values in report["steps"].items():
            line = [value["median"] if key == "seconds" else value for value in values[key]]
            axes.plot(sizes, line, marker="o", markersize=3, label=f"{name}: n^{values['exponents'][key]:.2f}")
            if key == "seconds":
                axes.plot(sizes, [line[0] * size / sizes[0] for size in sizes], linestyle=":", color="grey", lw=0.8)
        title = "processor time" if key == "seconds" else "peak memory of a process"
        axes.set(xscale="log", yscale="log", xlabel="pairs", ylabel=f"{title}, {unit}")
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
        axes.legend(fontsize=7)
        if key == "megabytes":
            axes.set_ylim(bottom=10, top=10 ** math.ceil(math.log10(max(axes.get_ylim()))))
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.growth", description=__doc__)
    parser.add_argument("--pairs", type=int, default=2000, help="of the smallest size")
    parser.add_argument("--merges", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--figure", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    announce(parser.prog)
    with tempfile.TemporaryDirectory(prefix="growth-") as folder:
        report = measure(Path(folder), options.pairs, options.merges, options.rounds)
    if options.figure:
        draw(report, options.figure)
    if options.json:
        print(json.dumps(report))
        return
    print({key: value for key, value in report.items() if key != "steps"})
    print(f"{'pairs':26s}" + "".join(f"{size:>26,}" for size in report["pairs"]) + "  exponent")
    for name, values in report["steps"].items():
        times = "".join(
            f"{one['median']:10.2f} ({one['least']:.2f} to {one['largest']:.2f})".rjust(26) for one in values["seconds"]
        )
        print(f"{name + ', s':26s}{times}  {values['exponents']['seconds']}")
        memory = "".join(f"{one:26.0f}" for one in values["megabytes"])
        print(f"{'  peak memory, MB':26s}{memory}  {values['exponents']['megabytes']}")


if __name__ == "__main__":
    main()
