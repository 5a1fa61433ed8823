"""An ablation by one command: rows of Table 3, scaled down together, trained with several seeds under one budget.

    python -m pipeline.ablation --corpus multi30k --rows base A-h1 C-N2 --seeds 1 2 3 --updates 1000

Every run is a DVC experiment of params.yaml's pair (`dvc exp show` lists them); those that are there already are not
run again. Widths (d_model, d_ff, d_k, d_v) are divided by --width, layers by --depth, for all rows alike; heads,
dropout, label smoothing and positions are the row's own. Compared are perplexity and BLEU of the validation set, from
the last checkpoint, as in Table 3.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt.config import InputError
from nmt.files import writing
from pipeline import rows
from pipeline.resolve import read_params
from pipeline.rows import Pair

ROWS = ("base", "A-h1", "B-dk16", "C-N2", "D-pdrop0.0", "D-eps0.0", "E-learned-positions")
WIDTHS = ("d_model", "d_ff", "d_k", "d_v")
POLL = 10.0
"""Seconds between two looks at the queue."""


@dataclass(frozen=True)
class Interval:
    """A mean and its 95% interval, by Student's t over seeds; unbounded for a single seed."""

    mean: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Interval:
        """Of one value a seed."""
        mean = statistics.fmean(values)
        if len(values) < 2:
            return Interval(mean, -math.inf, math.inf)
        from scipy.stats import t

        half = float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
        return Interval(mean, mean - half, mean + half)

    def text(self, digits: int, sign: str = "") -> str:
        """The mean, then the bounds in parentheses."""
        if math.isinf(self.low):
            return f"{self.mean:{sign}.{digits}f} (one seed)"
        return f"{self.mean:{sign}.{digits}f} ({self.low:{sign}.{digits}f} to {self.high:{sign}.{digits}f})"


@dataclass(frozen=True)
class Plan:
    """What is equal in all runs of an ablation."""

    pair: Pair
    corpus: str
    width: int
    depth: int
    training: Mapping[str, Any]
    subwords: Mapping[str, Any]

    def overrides(self, row: str) -> dict[str, dict[str, Any]]:
        """The overrides of a row's run."""
        settings = rows.settings(row, self.pair)["model"]
        model = {"N": settings["N"] // self.depth, **{key: settings[key] // self.width for key in WIDTHS}}
        for key, value in model.items():
            if value < 1:
                raise InputError(f"row {row}: {key} of {settings[key]} is divided to 0: lower --width or --depth")
        return {"model": model, "training": dict(self.training), "subwords": dict(self.subwords)}

    def name(self, row: str, seed: int) -> str:
        """The experiment's name: equal for equal settings alone."""
        what = json.dumps([self.pair, self.corpus, self.overrides(row)], sort_keys=True)
        return f"ablation-{row.replace('.', '_')}-{seed}-{hashlib.sha256(what.encode()).hexdigest()[:6]}"


def dvc(*words: str) -> str:
    """Run a dvc command; its standard output. Raises InputError with what it said where it fails."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        # No pipes: the queue's workers inherit them, and would be waited for.
        status = subprocess.run(["dvc", *words], stdout=output, stderr=errors, check=False).returncode
        output.seek(0)
        errors.seek(0)
        printed, told = output.read(), errors.read()
    if status != 0:
        raise InputError(f"`dvc {' '.join(words[:3])}` failed: {(told or printed).strip().split(chr(10))[-1]}")
    return printed


def experiments() -> dict[str, dict[str, Any]]:
    """Experiments of the present commit by name: `state` (`Queued`, `Running`, `Success`, `Failed`) and `data`."""
    found: dict[str, dict[str, Any]] = {}
    for commit in json.loads(dvc("exp", "show", "--json")):
        for experiment in commit.get("experiments") or []:
            revision = experiment["revs"][0]
            executor = experiment.get("executor") or {}
            found[experiment.get("name") or revision["rev"]] = {
                "state": str(executor.get("state") or "success").lower(), "data": revision.get("data"),
            }  # fmt: skip
    return found


def queue(plan: Plan, names: Mapping[str, tuple[str, int]]) -> int:
    """Queue the runs that are not there; returns how many."""
    known = experiments()
    queued = 0
    for name, (row, seed) in names.items():
        if name in known and known[name]["state"] != "failed":
            continue
        changes = [f"row={row}", f"seed={seed}", f"corpus={plan.corpus}", f"pair={plan.pair}"]
        changes += [
            f"++overrides.{section}.{key}={'null' if value is None else value}"
            for section, values in plan.overrides(row).items()
            for key, value in values.items()
        ]
        dvc("exp", "run", "--queue", "--name", name, *(word for change in changes for word in ("-S", change)))
        queued += 1
    return queued


def wait(names: Sequence[str], jobs: int) -> dict[str, dict[str, Any]]:
    """Run the queue until all named runs ended; their experiments. Raises InputError where one failed."""
    cores = len(os.sched_getaffinity(0))
    # Runs beside each other share the cores; the launcher would give all of them to each.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // jobs)))
    dvc("queue", "start", "--jobs", str(jobs))
    started, told = time.monotonic(), -1
    while True:
        known = experiments()
        mine = {name: known[name] for name in names if name in known}
        done = sum(experiment["state"] == "success" for experiment in mine.values())
        if failed := [name for name, experiment in mine.items() if experiment["state"] == "failed"]:
            raise InputError(f"{failed[0]} failed: `dvc queue logs {failed[0]}` tells why; run this again to go on")
        if done > told:
            told = done
            print(f"{done} of {len(names)} runs, {(time.monotonic() - started) / 60:.0f} minutes", flush=True)
        if done == len(names):
            return mine
        time.sleep(POLL)


def results(
    found: Mapping[str, dict[str, Any]], names: Mapping[str, tuple[str, int]]
) -> dict[str, dict[str, list[float]]]:
    """Perplexity and BLEU of the validation set, and the parameters, by row, a value a seed in the seeds' order."""
    measured: dict[str, dict[str, list[float]]] = {}
    for name, (row, _) in names.items():
        metrics = found[name]["data"]["metrics"]["results/metrics.json"]["data"]
        values = measured.setdefault(row, {"ppl": [], "bleu": [], "params": []})
        for key, metric in (("ppl", "ppl_valid"), ("bleu", "bleu_valid"), ("params", "params")):
            values[key].append(float(metrics[metric]))
    return measured


def trend(row: str, kind: str, differences: Interval, paper: float | None) -> str:
    """What a row's difference from base shows, beside the paper's."""
    what, digits = ("perplexity", 2) if kind == "ppl" else ("BLEU", 1)
    theirs = "" if paper is None else f"; the paper's {paper:+.{digits}f}"
    shown = differences.text(digits, "+")
    if differences.low <= 0 <= differences.high:
        return f"{row}: {what} {shown}{theirs}: no difference from base that these seeds show."
    if paper is None or paper == 0:
        return f"{row}: {what} {shown}{theirs}: another than base's."
    agrees = "as in the paper" if (differences.mean > 0) == (paper > 0) else "against the paper"
    return f"{row}: {what} {shown}{theirs}: a difference from base, {agrees}."


def report(plan: Plan, measured: Mapping[str, Mapping[str, Sequence[float]]], seeds: int) -> str:
    """The table and a sentence on every trend, in Markdown."""
    budget = ", ".join(f"{key} {value}" for key, value in plan.training.items())
    caption = (
        f"Corpus {plan.corpus}, {plan.pair}, validation set, last checkpoint; widths divided by {plan.width}, layers "
        f"by {plan.depth}; {budget}; {seeds} seeds, 95% intervals by Student's t. The paper's are newstest2013's."
    )
    lines = [
        caption,
        "",
        "| row | params | PPL | BLEU | paper PPL | paper BLEU |",
        "|---|---|---|---|---|---|",
    ]
    sentences = []
    base = rows.row("base").paper
    for row, values in measured.items():
        paper = rows.row(row).paper
        ppl, bleu = Interval.of(values["ppl"]), Interval.of(values["bleu"])
        millions = f"{values['params'][0] / 1e6:.2f} M"
        lines.append(f"| `{row}` | {millions} | {ppl.text(2)} | {bleu.text(1)} | {paper.ppl} | {paper.bleu} |")
        if row == "base" or "base" not in measured:
            continue
        for kind, theirs, of_base in (("ppl", paper.ppl, base.ppl), ("bleu", paper.bleu, base.bleu)):
            pairs = zip(values[kind], measured["base"][kind], strict=True)
            difference = None if theirs is None or of_base is None else theirs - of_base
            sentences.append(f"- {trend(row, kind, Interval.of([ours - other for ours, other in pairs]), difference)}")
    return "\n".join([*lines, "", *sentences]) + "\n"


def run(options: argparse.Namespace) -> None:
    """Queue, run, compare."""
    params = read_params()
    plan = Plan(
        pair=params["pair"], corpus=options.corpus or params["corpus"], width=options.width, depth=options.depth,
        training={
            "updates": options.updates, "tokens": options.tokens, "warmup_steps": options.warmup,
            "learning_rate_scale": options.rate, "precision": options.precision, "validate_every": options.updates,
            "checkpoint_every": max(1, options.updates // 5), "keep_checkpoints": 5,
        },
        subwords={"merges": options.merges} if params["pair"] == "en-de" else {"vocabulary": options.merges},
    )  # fmt: skip
    names = {plan.name(row, seed): (row, seed) for row in options.rows for seed in options.seeds}
    print(f"{queue(plan, names)} runs queued of {len(names)}", flush=True)
    text = report(plan, results(wait(list(names), options.jobs), names), len(options.seeds))
    with writing(options.out) as temporary:
        temporary.write_text(text, encoding="utf-8")
    print(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run an ablation."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.ablation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="+", default=ROWS, metavar="ROW")
    parser.add_argument("--seeds", nargs="+", type=int, default=(1, 2, 3), metavar="SEED")
    parser.add_argument("--corpus", help="a file of data/catalog/; params.yaml's by default")
    for name, default, what in (
        ("width", 4, "divides every width"), ("depth", 2, "divides the layers"), ("updates", 1000, "of every run"),
        ("tokens", 1500, "target tokens an update"), ("warmup", 400, "updates of warm-up"),
        ("merges", 4000, "BPE merges, or word pieces"), ("jobs", 1, "runs beside each other"),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{what} (default: {default})")
    parser.add_argument("--rate", type=float, default=1.0, help="multiplies Eq. 3")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--out", type=Path, default=Path("results/ablation.md"))
    try:
        run(parser.parse_args(arguments))
    except InputError as error:
        print(f"ablation: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
