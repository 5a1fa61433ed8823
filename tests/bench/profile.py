"""Which operations an update takes its time for: python -m tests.bench.profile

`--row small --precision float32 bfloat16` trains a row on lengths like WMT14's and prints the share of each kind of
operation in the time of its updates, by torch's profiler, which itself takes some time; and how fast the updates and
their matrix products alone are, as shares of the peak measured before. `--src F --tgt F` gives files of subwords
instead, as `tests.bench.training` does. The environment of a production training is set (pipeline/trainings/launch.py).
"""

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from itertools import islice
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from nmt.flops import LengthSums, training_flops
from nmt.hardware import measure
from nmt.training.batches import Corpus, train_files
from nmt.training.distributed import World
from nmt.training.settings import Job
from nmt.training.trainer import Trainer
from pipeline.trainings import launch
from tests.bench.conditions import announce
from tests.bench.training import job, prepare

KINDS = {
    "matrix products": ("mm", "addmm", "addmm_", "bmm", "baddbmm", "mkldnn_linear", "linear", "_linear_pointwise"),
    "softmax and masks of attention": ("_softmax", "_softmax_backward_data", "masked_fill", "masked_fill_"),
    "loss without its products": ("_log_softmax", "exp_", "sub_", "gather", "scatter_add_", "sum"),
    "masks of dropout": ("random_", "ge"),
    "LayerNorm": ("native_layer_norm", "native_layer_norm_backward"),
    "additions, factors, ReLU": ("add", "add_", "mul", "mul_", "div", "clamp_min", "relu", "threshold_backward"),
    "copies and casts": ("copy_", "cat", "stack", "clone", "contiguous", "zeros_like", "fill_", "zero_"),
    "embedding and choice of rows": ("embedding", "embedding_dense_backward", "index_select", "index_add_"),
    "Adam and the gradient's norm": ("_fused_adam_", "linalg_vector_norm", "_foreach_norm"),
}
"""What an update does, and torch's operations for it."""


def shares(trainer: Trainer, corpus: Corpus, count: int) -> tuple[float, float, Counter[str]]:
    """Return the milliseconds of an update, its operations, and the milliseconds of each kind of operation."""
    feed = trainer.updates(corpus, count + 1)
    trainer.step(next(feed))  # Takes memory from the system.
    made = list(islice(feed, count))
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        began = time.perf_counter()
        for update in made:
            trainer.step(update)
        milliseconds = 1000 * (time.perf_counter() - began) / count
    kinds = {f"{room}::{name}": kind for kind, names in KINDS.items() for name in names for room in ("aten", "mkldnn")}
    times: Counter[str] = Counter()
    for event in profiled.key_averages():
        times[kinds.get(event.key, "everything else")] += event.self_cpu_time_total / 1000 / count
    sums = sum((update.sums for update in made), LengthSums())
    return milliseconds, training_flops(trainer.job.model, trainer.job.vocabulary, sums) / count, times


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.profile", description=__doc__)
    parser.add_argument("--row", default="small", help="a row of pipeline/config/rows.yaml, on lengths like WMT14's")
    parser.add_argument("--pair", default="en-de")
    parser.add_argument("--src", type=Path, help="subwords of the source, separated by spaces")
    parser.add_argument("--tgt", type=Path, help="subwords of the target")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), nargs="+", default=["float32"])
    parser.add_argument("--tokens", type=int, help="target tokens an update; the row's own")
    parser.add_argument("--shards", type=int, help="shards an update; the row's own")
    parser.add_argument("--updates", type=int, default=8)
    options = parser.parse_args()
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        # These variables are read when a process starts.
        os.environ.update(launch.environment(1))
        os.execv(sys.executable, [sys.executable, "-m", "tests.bench.profile", *sys.argv[1:]])
    announce(parser.prog)
    torch.set_flush_denormal(True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "corpus"
        # With files of subwords the corpus is theirs, and the settings are the row's.
        texts = argparse.Namespace(**{**vars(options), "row": None if options.src else options.row})
        vocabulary, corpus = prepare(texts, work), Corpus(train_files(work))
        for precision in options.precision:
            settings = job(argparse.Namespace(**{**vars(options), "precision": precision}), vocabulary, work)
            trainer = Trainer(Job.model_validate(settings), World(0, 1, torch.device("cpu")))
            peak = measure("cpu", 2.0, dtype=getattr(torch, precision)) / 1000
            milliseconds, operations, times = shares(trainer, corpus, options.updates)
            products = operations / (times["matrix products"] * peak)
            whole = operations / (milliseconds * peak)
            print(f"{options.row}, {precision}: {milliseconds:.0f} ms an update, {whole:.2f} of the measured peak")
            print(f"  its matrix products alone: {products:.2f} of the measured peak")
            for kind, part in times.most_common():
                print(f"  {part / times.total():6.1%}  {part:6.1f} ms  {kind}")


if __name__ == "__main__":
    main()
