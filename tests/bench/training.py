"""Speed of training: the production `train()`, by torchrun, on real subword files or on lengths like WMT14's.

`python -m tests.bench.training --src F --tgt F --json` takes two files of subwords separated by spaces, a sentence a
line; `--row base --pair en-de` makes pairs with lengths like WMT14's and trains that row of the paper's tables.
Printed: target tokens a second (the median of the intervals after the first), padding, peak memory of a process, the
loss after the last update, the share of the machine's matrix peaks, which are measured before each training, and of the
data sheet's where the device is known; on a GPU also the operations that the host starts for an update, and the GPU's
memory. With `--row` a GPU compiles where it would in the row's whole training; printed is also how long that would take
at this speed on one such device and, if eight were eight times as fast, on eight; with `--price`, what that costs.
Several precisions (`--precision float32 bfloat16 --rounds 3`) take turns. The weights are thrown away. Needs torch,
numpy, pyarrow, safetensors, PyYAML and pydantic alone.
"""

import argparse
import json
import multiprocessing
import os
import re
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import torch
import yaml
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from nmt import hardware
from nmt.ids import EOS
from nmt.training import loop
from nmt.training import trainer as trainer_module
from nmt.training.batches import Corpus, Update, train_files
from nmt.training.distributed import World
from nmt.training.history import read_history
from nmt.training.settings import Job
from nmt.training.trainer import Trainer, is_long
from pipeline.trainings import launch
from tests.bench.conditions import announce, conditions, spread

Ids = list[list[int]]
Result = TypeVar("Result")
ROWS = Path(__file__).resolve().parents[2] / "pipeline/config/rows.yaml"
WMT14_VOCABULARY = 37_056
WMT14_PAIRS = 400_000
INTERVALS = 6
WORKER = "tests.bench.training"
STARTS = re.compile(r"cu(da)?(Launch|Memcpy|Memset)")
"""Names of calls by which the host starts work of a GPU, as the profiler shows them."""


def read(src: Path, tgt: Path, longest: int = 250) -> tuple[Ids, Ids, int]:
    """Ids of both files' subwords, EOS included, and the size of their joint vocabulary."""
    lines = [path.read_text(encoding="utf-8").removesuffix("\n").split("\n") for path in (src, tgt)]
    pairs = [(s.split(), t.split()) for s, t in zip(*lines, strict=True)]
    pairs = [(s, t) for s, t in pairs if 0 < len(s) < longest and 0 < len(t) < longest]
    words = sorted({word for pair in pairs for side in pair for word in side})
    ids = {word: number for number, word in enumerate(words, start=4)}
    sides = tuple([[ids[word] for word in pair[side]] + [EOS] for pair in pairs] for side in (0, 1))
    return sides[0], sides[1], -(-(len(ids) + 4) // 64) * 64


def like_wmt14() -> tuple[Ids, Ids, int]:
    """Random subwords in sentences with lengths like WMT14's EN-DE: a mean of 27, sides that go together."""
    random = np.random.default_rng(1)
    source = np.clip(random.gamma(3.0, 9.0, WMT14_PAIRS), 2, 98).astype(int)
    target = np.clip(source * random.normal(1.05, 0.12, WMT14_PAIRS), 2, 98).astype(int)
    sides = [
        [[*random.integers(4, WMT14_VOCABULARY, length - 1).tolist(), EOS] for length in lengths]
        for lengths in (source, target)
    ]
    return sides[0], sides[1], WMT14_VOCABULARY


def write_bins(folder: Path, src: Ids, tgt: Ids, growth: float = 1.1) -> None:
    """Write a binned corpus as the stage binarize lays it out, and its first 100 pairs as validation."""
    bounds, upper = [], 8.0
    while not bounds or bounds[-1] < max(map(len, tgt)):
        bounds.append(int(upper))
        upper = max(upper * growth, bounds[-1] + 1)
    which = np.searchsorted(bounds, [len(ids) for ids in tgt])
    for number, bound in enumerate(bounds):
        write(folder / f"train.{bound:05d}.arrow", src, tgt, np.flatnonzero(which == number).tolist())
    write(folder / "valid.arrow", src, tgt, range(100))


def write(path: Path, src: Ids, tgt: Ids, rows: Sequence[int]) -> None:
    if not rows:
        return
    kind = pa.list_(pa.uint16())
    columns = {
        "src": pa.array([src[row] for row in rows], kind), "tgt": pa.array([tgt[row] for row in rows], kind),
        "line": pa.array(rows, pa.int64()),
    }  # fmt: skip
    table = pa.table(columns)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
        out.write_table(table, max_chunksize=10_000)


def merged(defaults: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Two levels of a row's settings, the changes over the defaults."""
    return {key: {**value, **changes.get(key, {})} for key, value in defaults.items()}


def row_settings(row: str, pair: str) -> dict[str, Any]:
    """Model and training of a row."""
    rows = yaml.safe_load(ROWS.read_text(encoding="utf-8"))
    base = {key: rows["base"][key] for key in ("model", "training")}
    entry = rows["rows"][row]
    return merged(merged(base, entry.get("settings", {})), entry.get("pairs", {}).get(pair, {}))


def job(a: argparse.Namespace, vocabulary: int, corpus: Path) -> dict[str, Any]:
    """The training job: the row's settings, or those of the command line."""
    settings = row_settings(a.row or "base", a.pair)
    model, training = settings["model"], settings["training"]
    if a.row is None:
        model |= {
            "N": a.layers, "d_model": a.d_model, "d_ff": a.d_ff, "h": a.heads, "d_k": a.d_model // a.heads,
            "d_v": a.d_model // a.heads,
        }  # fmt: skip
    training |= {
        "updates": a.updates, "precision": a.precision, "seed": 1, "validate_every": 10**8, "checkpoint_every": 10**8,
        "resume_minutes": 10**6,
    }  # fmt: skip
    for name in ("tokens", "shards"):
        if getattr(a, name) is not None:
            training[name] = getattr(a, name)
    return {"model": model, "training": training, "vocabulary": vocabulary, "corpus": str(corpus)}


def prepare(a: argparse.Namespace, folder: Path) -> int:
    """Write the binned corpus; the size of its vocabulary."""
    src, tgt, vocabulary = like_wmt14() if a.row else read(a.src, a.tgt)
    folder.mkdir()
    write_bins(folder, src, tgt)
    return vocabulary


def alone(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function in a process of its own, whose children have no memory of other calls in their peak."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def compare(a: argparse.Namespace, work: Path) -> dict[str, dict[str, Any]]:
    """Train with each precision in turn; the last round's measurements, and the spread of all."""
    vocabulary = alone(prepare, a, work / "corpus")
    by_precision: dict[str, list[dict[str, Any]]] = {precision: [] for precision in a.precision}
    for number in range(a.rounds):
        for precision, rounds in by_precision.items():
            one = argparse.Namespace(**{**vars(a), "precision": precision})
            rounds.append(alone(measure, one, work / "corpus", vocabulary, work / f"{precision}-{number}"))
    return {
        precision: {
            **rounds[-1],
            "target_tokens_per_s": spread([one_round["target_tokens_per_s"] for one_round in rounds]),
            "share_of_peak": {
                name: spread([one_round["share_of_peak"][name] for one_round in rounds]) for name in rounds[-1]["peaks"]
            },
        }
        for precision, rounds in by_precision.items()
    }


def operations(trainer: Trainer, update: Update) -> int:
    """How many operations the host starts for an update: on a GPU kernels and copies, by torch's profiler."""
    if trainer.world.device.type == "cpu":
        with Counting() as counting:
            trainer.step(update)
        return counting.operations
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        trainer.step(update)
        torch.cuda.synchronize()
    return sum(event.count for event in profiled.key_averages() if STARTS.match(event.key))


class Counting(TorchDispatchMode):
    """Counts torch's operations that compute: not those that look at a tensor in another way."""

    operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += not func.is_view
        return func(*args, **(kwargs or {}))


def on_gpu(settings: dict[str, Any], compiled: bool, corpus: Path) -> dict[str, Any]:
    """What the host starts for an update of this training, and the memory that it takes on a GPU."""
    device = torch.device("cuda")
    trainer_module.COMPILED_OPERATIONS = 0 if compiled else inf
    trainer = Trainer(Job.model_validate(settings), World(0, 1, device))
    update = next(trainer.updates(Corpus(train_files(corpus)), 1))
    for _ in range(3):  # Compiled.
        trainer.step(update)
    memory = round(torch.cuda.max_memory_allocated() / 2**20)
    started = operations(trainer, update)
    return {"compiled": trainer.compiled, "operations_started": started, "gpu_memory_mb": memory}


def compiles(a: argparse.Namespace, settings: dict[str, Any]) -> bool:
    """Whether a GPU would compile the row's whole training, or the one of the command line."""
    row = row_settings(a.row, a.pair)["training"] if a.row else settings["training"]
    whole = {**settings["training"], "updates": row["updates"], "tokens": row["tokens"]}
    return is_long(Job.model_validate({**settings, "training": whole}))


def train_compiled(*arguments: str) -> None:
    """One of torchrun's workers: the production loop, compiled on a GPU though it has few updates."""
    trainer_module.COMPILED_OPERATIONS = 0
    sys.argv[1:] = arguments
    loop.main()


def whole_training(a: argparse.Namespace, rate: float) -> dict[str, str]:
    """Hours, and money at `--price` for a device and hour, of a row's training at `rate` target tokens a second."""
    training = row_settings(a.row, a.pair)["training"]
    hours = training["updates"] * training["tokens"] / rate / 3600
    money = "" if a.price is None else f", {hours * a.price:,.2f}"
    return {f"on {count}, computed": f"{hours / count:,.1f} hours{money}" for count in (1, 8)}


def measure(a: argparse.Namespace, corpus: Path, vocabulary: int, state: Path) -> dict[str, Any]:
    """Train in the folder `state`, and say how fast it went."""
    settings = job(a, vocabulary, corpus)
    state.mkdir()
    (state / "job.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    peaks = {name: hardware.measure(kind, 2.0, dtype=getattr(torch, name)) for name in ("float32", "bfloat16")}
    if compiled := compiles(a, settings):
        command = launch.command
        launch.command = lambda count, job: [WORKER if x == loop.__name__ else x for x in command(count, job)]
    started = time.monotonic()
    status = launch.torchrun(state, lambda: None)
    if status != 0:
        raise SystemExit(f"training ended with status {status}")
    done = json.loads((state / "done.json").read_text(encoding="utf-8"))
    history = [record for record in read_history(state / "history.jsonl") if "loss" in record]
    size = max(1, len(history) // INTERVALS)
    parts = [history[start : start + size] for start in range(0, len(history), size)]
    rates = [sum(r["tokens"] for r in part) / sum(r["tokens"] / r["tokens_per_second"] for r in part) for part in parts]
    rate = statistics.median(rates[1:])
    counted = done["flops_counted"] / done["target_tokens"] * rate
    devices = hardware.devices(done["device"], done["processes"])
    sheet = hardware.data_sheet(done["device"])
    sheet_peak = sheet and sheet.peak(a.precision)
    return {
        "target_tokens_per_s": round(rate), "intervals": [round(r) for r in rates],
        "padding": round(done["padding"], 4),
        "update_ms": round(1000 * done["target_tokens"] / done["updates"] / rate, 1),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024),
        "loss": history[-1]["loss"], "processes": done["processes"], "threads": done["threads"],
        "precision": a.precision, "device": done["device"], "params": done["params"], "updates": done["updates"],
        "flops_per_s": counted, "peaks": peaks,
        "share_of_peak": {name: round(counted / (devices * peak), 3) for name, peak in peaks.items()},
        "share_of_data_sheet": round(counted / (devices * sheet_peak), 3) if sheet_peak else None,
        "whole_training": whole_training(a, rate / devices) if a.row else None,
        "seconds": round(time.monotonic() - started, 1),
        **(alone(on_gpu, settings, compiled, corpus) if kind == "cuda" else {}),
    }  # fmt: skip


def main() -> None:
    """Measure and print; or, with a job's folder and the id of torchrun's process, work for torchrun."""
    if len(sys.argv) == 3 and sys.argv[2].isdecimal():
        train_compiled(*sys.argv[1:])
        return
    parser = argparse.ArgumentParser(prog="python -m tests.bench.training", description=__doc__)
    parser.add_argument("--src", type=Path, help="subwords of the source, separated by spaces")
    parser.add_argument("--tgt", type=Path, help="subwords of the target")
    parser.add_argument("--row", help="a row of pipeline/config/rows.yaml, on lengths like WMT14's")
    parser.add_argument("--pair", default="en-de")
    for name, default in (("d-model", 256), ("d-ff", 1024), ("heads", 4), ("layers", 3), ("updates", 60)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--tokens", type=int, help="target tokens an update; 4,096, or the row's own")
    parser.add_argument("--shards", type=int, help="shards an update; 2, or the row's own")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), nargs="+", default=["float32"])
    parser.add_argument("--rounds", type=int, default=1, help="trainings with each precision, in turn")
    parser.add_argument("--processes", type=int, help="how many train together; the launcher's choice by default")
    parser.add_argument("--price", type=float, help="of one device for an hour")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    a = parser.parse_args()
    if (a.row is None) == (a.src is None or a.tgt is None):
        parser.error("give either --src and --tgt, or --row")
    if a.row is None:
        a.tokens, a.shards = a.tokens or 4096, a.shards or 2
    if a.processes is not None:
        os.environ["WMT_PROCESSES"] = str(a.processes)
    announce(parser.prog)
    with tempfile.TemporaryDirectory() as work:
        result = {**conditions(), **compare(a, Path(work))}
    print(json.dumps(result, indent=None if a.json else 2))


if __name__ == "__main__":
    main()
