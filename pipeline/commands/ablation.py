"""An ablation: rows of Table 3, scaled down together, trained with several seeds under one budget; `wmt ablation`.

Every run is a DVC experiment of params.yaml's pair (`dvc exp show` lists them), of the repository as it stands when the
ablation begins; those that are there already are not run again. Widths (d_model, d_ff, d_k, d_v) are divided by
--width, layers by --depth, for all rows alike; heads, dropout, label smoothing and positions are the row's own.
Compared are perplexity and BLEU of the validation set, from the last checkpoint, as in Table 3.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt.common.files import writing
from nmt.config import InputError
from pipeline.config import rows
from pipeline.config.resolution import read_params
from pipeline.config.settings import Pair
from pipeline.corpora.blocks import workers
from pipeline.runs import copies
from pipeline.runs.pipeline_run import Run

ROWS = ("base", "A-h1", "B-dk16", "C-N2", "D-pdrop0.0", "D-eps0.0", "E-learned-positions")
WIDTHS = ("d_model", "d_ff", "d_k", "d_v")


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


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of an ablation."""

    rows: Sequence[str]
    seeds: Sequence[int]
    corpus: str | None
    """A file of data/catalog/; None: that of params.yaml."""
    width: int
    """Divides every width."""
    depth: int
    """Divides the layers."""
    updates: int
    tokens: int
    """Target tokens of an update."""
    warmup: int
    """Updates of warm-up."""
    merges: int
    """BPE merges, or word pieces."""
    jobs: int
    """Runs beside each other."""
    rate: float
    """Multiplies Eq. 3."""
    precision: str
    out: Path


@dataclass(frozen=True)
class Plan:
    """What is equal in all runs of an ablation."""

    pair: Pair
    corpus: str
    width: int
    depth: int
    training: Mapping[str, Any]
    subwords: Mapping[str, Any]
    repository: str
    """The commit, and what of the code differs from it."""

    def overrides(self, row: str) -> dict[str, dict[str, Any]]:
        """The overrides of a row's run."""
        settings = rows.settings(row, self.pair)["model"]
        model = {"N": settings["N"] // self.depth, **{key: settings[key] // self.width for key in WIDTHS}}
        for key, value in model.items():
            if value < 1:
                raise InputError(f"row {row}: {key} of {settings[key]} is divided to 0: lower --width or --depth")
        return {"model": model, "training": dict(self.training), "subwords": dict(self.subwords)}

    def name(self, row: str, seed: int) -> str:
        """The experiment's name: equal for equal settings and code alone."""
        what = json.dumps([self.pair, self.corpus, self.overrides(row), self.repository], sort_keys=True)
        return f"ablation-{row.replace('.', '_')}-{seed}-{hashlib.sha256(what.encode()).hexdigest()[:6]}"


def finished(commit: str) -> dict[str, dict[str, Any]]:
    """What the finished experiments of a commit made, by name."""
    command = ["dvc", "exp", "show", "--json", "--rev", commit]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        told = next((line for line in result.stderr.split("\n") if line.startswith("ERROR")), result.stderr.strip())
        raise InputError(f"`dvc exp show` failed: {told}")
    return {
        str(experiment["name"]): experiment["revs"][0]["data"]
        for commit in json.loads(result.stdout)
        for experiment in commit.get("experiments") or []
        if (experiment.get("executor") or {"state": "success"})["state"] == "success"
    }


def run_of(name: str) -> Run:
    """The run of that name; what it prints stands in its log."""
    return Run(Path.cwd(), name, name, lambda line: None)


def prepared(plan: Plan, name: str, row: str, seed: int) -> Run:
    """A run in a copy of the repository of its own, made now: what is edited later is no part of the ablation.

    (`dvc exp run --temp` would be shorter. Of those at work at the same time one takes what another has queued.)
    """
    run = run_of(name)
    changes = {"row": row, "seed": seed, "corpus": plan.corpus, "pair": plan.pair, "overrides": plan.overrides(row)}
    copies.make(run.original, run.folder, changes)
    return run


def experiment(run: Run, stopped: threading.Event) -> None:
    """Run it. Raises InputError where it fails, InterruptedError if stopped."""

    def stop() -> None:
        if stopped.is_set():
            raise InterruptedError(f"{run.name} was stopped")

    try:
        run.begin({}, None)
        if run.dvc("repro", tick=stop) != 0:
            raise InputError(f"{run.name} failed, as {run.folder / 'log'} tells: mend that and run this again to go on")
        run.save(())
    finally:
        run.close()
    run.remove()


def run_all(plan: Plan, names: Mapping[str, tuple[str, int]], known: Collection[str], jobs: int) -> None:
    """Run what is not there yet, `jobs` at a time. Raises InputError where one fails; those at work end first."""
    # Copies that are left: of a run that failed, with the code that failed, or of a killed one, perhaps still ending.
    for left in map(run_of, names):
        with copies.held(left.folder):
            left.remove()
    missing = [name for name in names if name not in known]
    print(f"{len(missing)} runs of {len(names)} to do", flush=True)
    # Runs beside each other share the cores; the launcher would give all of them to each.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, workers() // jobs)))
    runs = [prepared(plan, name, *names[name]) for name in missing]
    started, stopped = time.monotonic(), threading.Event()
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(experiment, run, stopped) for run in runs]
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                future.result()
                spent = (time.monotonic() - started) / 60
                print(f"{done} of {len(missing)} runs, {spent:.0f} minutes", flush=True)
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            if not isinstance(error, InputError):
                stopped.set()
            for run, future in zip(runs, futures, strict=True):
                if future.cancelled():
                    run.remove()
            raise


def results(
    found: Mapping[str, dict[str, Any]], names: Mapping[str, tuple[str, int]]
) -> dict[str, dict[str, list[float]]]:
    """Perplexity and BLEU of the validation set, and the parameters, by row, a value a seed in the seeds' order."""
    measured: dict[str, dict[str, list[float]]] = {}
    for name, (row, _) in names.items():
        metrics = found[name]["metrics"]["results/metrics.json"]["data"]
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


def run(options: Options) -> str:
    """Run what is missing and compare; returns the report, which is also written to `options.out`.

    Raises InputError where the settings do not fit, or a run fails.
    """
    params = read_params()
    if params.get("overrides"):
        raise InputError(
            "params.yaml: `overrides` would go over every row's own settings: empty them (--updates, --tokens and "
            "others set what is equal in all runs)"
        )
    commit = copies.git(Path(), "rev-parse", "HEAD").stdout.decode().strip()
    changed = copies.git(Path(), "diff", commit, "--", ".", ":!params.yaml", ":!dvc.lock").stdout
    plan = Plan(
        pair=params["pair"], corpus=options.corpus or params["corpus"], width=options.width, depth=options.depth,
        training={
            "updates": options.updates, "tokens": options.tokens, "warmup_steps": options.warmup,
            "learning_rate_scale": options.rate, "precision": options.precision, "validate_every": options.updates,
            "checkpoint_every": max(1, options.updates // 5), "keep_checkpoints": 5,
        },
        subwords={"merges": options.merges} if params["pair"] == "en-de" else {"vocabulary": options.merges},
        repository=commit + hashlib.sha256(changed).hexdigest(),
    )  # fmt: skip
    names = {plan.name(row, seed): (row, seed) for row in options.rows for seed in options.seeds}
    try:
        run_all(plan, names, finished(commit).keys(), options.jobs)
    except KeyboardInterrupt:
        print("ablation: stopped; the same command goes on", file=sys.stderr)
        raise
    text = report(plan, results(finished(commit), names), len(options.seeds))
    with writing(options.out) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return text
