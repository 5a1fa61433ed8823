"""Packed batches of few shapes beside padded ones, on lengths like WMT14's: python -m tests.bench.packed

`--row base --updates 0` prints the shapes of a row's updates and the padding of both kinds of batches. With updates,
both kinds train in turn: milliseconds of an update, and the operations that the host starts for it. On a GPU packed
batches are repeated as CUDA graphs; on a CPU their operations are started one by one, as those of padded ones are.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from nmt.config import Job
from nmt.training.batches import Corpus, cut, pairs_of_updates, train_files, updates_an_epoch
from nmt.training.distributed import World
from nmt.training.packed.batches import PackedPlan
from nmt.training.packed.recording import WARM_UP, CudaGraphs
from nmt.training.packed.shapes import smallest
from nmt.training.step import Trainer
from tests.bench.conditions import announce
from tests.bench.training import job, operations, prepare

KINDS = {"padded": "0", "packed": "1"}


def show_shapes(corpus: Corpus, training: dict[str, Any]) -> None:
    """Print the shapes of two epochs' updates, how often each is used, and the padding."""
    seed, tokens, shards = (training[name] for name in ("seed", "tokens", "shards"))
    plan, used, padded, places = PackedPlan(corpus, seed, tokens, shards), Counter[Any](), 0, 0
    for _, pairs in pairs_of_updates(corpus, seed, tokens, range(1, 2 * updates_an_epoch(corpus, tokens) + 1)):
        shape = smallest(plan.shapes, plan.arranged(pairs).needed)
        used[shape] += 1
        places += shards * 2 * shape.rows * shape.row_length
        padded += cut(corpus, pairs, shards).padded
    packed = sum(count * shards * (shape.src + shape.tgt) for shape, count in used.items())
    others = sum(count for shape, count in used.items() if shape not in plan.shapes)
    print(f"{shards} shards, {tokens:,} source and target tokens, {used.total()} updates of two epochs,")
    print(f"{len(plan.shapes)} shapes; {others} updates, of the second epoch, have another one:")
    for shape, count in sorted(used.items(), key=lambda item: (item[0].row_length, item[0].src)):
        print(
            f"  {count:5} updates: {shape.src} source and {shape.tgt} target, {shape.rows} rows of {shape.row_length}"
        )
    for name, positions in (("packed", packed), ("padded", padded)):
        print(f"{name} batches: {1 - 2 * corpus.tokens / positions:.2%} of the positions are padding")
    print(f"attention of packed batches: {places / corpus.tokens / 2:.2f} positions of rows for a subword")


def compare(corpus: Corpus, given: Job, count: int, rounds: int) -> None:
    """Print how long an update of each kind takes, in turn, and how many operations it starts."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trainers, made = {}, {}
    for kind, value in KINDS.items():
        with patch.dict(os.environ, {"NMT_GRAPH": value}):
            recorder = CudaGraphs() if device.type == "cuda" and kind == "packed" else None
            trainers[kind] = Trainer(given, World(0, 1, device), recorder)
        made[kind] = list(islice(trainers[kind].updates(corpus, count), count))
        for _ in range(WARM_UP + 1):  # Memory is taken from the system; on a GPU passes are compiled and recorded.
            for update in made[kind]:
                trainers[kind].step(update)
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        for kind, trainer in trainers.items():
            synchronize(device)
            began = time.perf_counter()
            for update in made[kind]:
                trainer.step(update)
            synchronize(device)
            times[kind].append(1000 * (time.perf_counter() - began) / count)
    for kind, found in times.items():
        started = operations(trainers[kind], made[kind][0])
        ratio = statistics.median(found) / statistics.median(times["padded"])
        print(
            f"{kind} batches: {statistics.median(found):.0f} ms an update ({min(found):.0f} to {max(found):.0f}), "
            f"{ratio:.2f} of padded ones; {started:,} operations started"
        )


def synchronize(device: torch.device) -> None:
    """Wait for a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.packed", description=__doc__)
    parser.add_argument("--row", default="small", help="a row of pipeline/config/rows.yaml")
    parser.add_argument("--pair", default="en-de")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--tokens", type=int, help="target tokens an update; the row's own")
    parser.add_argument("--shards", type=int, help="shards an update; the row's own")
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    announce(parser.prog)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "corpus"
        vocabulary, corpus = prepare(options, work), Corpus(train_files(work))
        settings = job(options, vocabulary, work)
        show_shapes(corpus, settings["training"])
        if options.updates:
            compare(corpus, Job.model_validate(settings), options.updates, options.rounds)


if __name__ == "__main__":
    main()
