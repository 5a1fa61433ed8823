"""`wmt ablation`: train rows of Table 3, scaled down together, with several seeds, and compare them.

Every run is a DVC experiment in a copy of the repository.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from nmt.common.files import output_file, writing
from nmt.config import InputError, Precision
from pipeline.config import rows
from pipeline.config.errors import validated
from pipeline.config.machine import available_cores
from pipeline.config.paths import DVC_YAML, PARAMS
from pipeline.config.resolution import Params, read_params, resolve
from pipeline.config.settings import Pair
from pipeline.config.tasks import TRANSLATION, task_of
from pipeline.flows import copies
from pipeline.tracking import source

app = typer.Typer()

WIDTHS = ("d_model", "d_ff", "d_k", "d_v")
CHECKPOINTS = 5
"""Checkpoints of each run, all of which are averaged; `big` would ask for 20."""
SHARD_TOKENS = 2048
"""Subwords a side of a shard, at most twice as many: enough to fill a matrix product on a CPU."""
LOG = 60
"""Last lines of a run's output that are printed when it fails."""


@dataclass(frozen=True)
class Plan:
    """The settings that all runs of an ablation share."""

    pair: Pair
    corpus: str
    width: int
    depth: int
    training: Mapping[str, Any]
    subwords: Mapping[str, Any]
    repository: str  # the commit and a hash of the uncommitted changes

    def params(self, row: str, seed: int) -> dict[str, Any]:
        """Return the content of params.yaml for a run. Raises InputError where a size is divided to 0."""
        settings = rows.settings(row, self.pair)["model"]
        model = {"N": settings["N"] // self.depth, **{key: settings[key] // self.width for key in WIDTHS}}
        for key, value in model.items():
            if value < 1:
                raise InputError(f"row {row}: {key} of {settings[key]} is divided to 0: lower --width or --depth")
        averaging = {"last": min(CHECKPOINTS, self.training["updates"])}
        overrides = {"model": model, "training": self.training, "subwords": self.subwords, "averaging": averaging}
        return {"row": row, "pair": self.pair, "corpus": self.corpus, "seed": seed, "overrides": overrides}

    def name(self, row: str, seed: int) -> str:
        """Return the experiment's name: equal names mean equal settings and code."""
        content = json.dumps([self.params(row, seed), self.repository], sort_keys=True)
        return f"ablation-{row.replace('.', '_')}-{seed}-{hashlib.sha256(content.encode()).hexdigest()[:6]}"


def finished(commit: str) -> dict[str, Any]:
    """Return DVC's data of the finished experiments of a commit by name. Raises InputError where DVC fails."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo() as repo:
            shown = repo.experiments.show(revs=commit)
    except DvcException as error:
        raise InputError(f"`dvc exp show` failed: {error}") from error
    found = [experiment for each in shown for experiment in each.experiments or ()]
    return {str(one.name): one[0].data for one in found if one.executor is None or one.executor.state == "success"}


def run_all(plan: Plan, names: Mapping[str, tuple[str, int]], known: Collection[str], jobs: int) -> None:
    """Run the missing experiments, `jobs` at a time. Raises InputError where one fails, after the running ones end.

    All copies are made first, so that later edits do not change the ablation. `dvc exp run --temp` would be shorter,
    but of several such processes one takes the experiment that another queued.
    """
    missing = [name for name in names if name not in known]
    print(f"{len(missing)} runs of {len(names)} to do", flush=True)
    # Simultaneous runs share the cores; the launcher would give each run all of them.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, available_cores() // jobs)))
    started, stopped = time.monotonic(), threading.Event()

    def stop() -> None:
        if stopped.is_set():
            raise InterruptedError

    with ExitStack() as made, ThreadPoolExecutor(jobs) as pool:
        work = [made.enter_context(copies.made(Path.cwd(), name, plan.params(*names[name]))) for name in missing]
        futures = [pool.submit(run_experiment, copy, stop) for copy in work]
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                future.result()
                spent = (time.monotonic() - started) / 60
                print(f"{done} of {len(missing)} runs, {spent:.0f} minutes", flush=True)
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            if not isinstance(error, InputError):
                stopped.set()
            raise


def run_experiment(copy: Path, stop: Callable[[], None]) -> None:
    """Run all stages and save the experiment, calling `stop` often. Raises InputError where a stage fails."""
    printed = deque[str](maxlen=LOG)
    if copies.run(copy, [*copies.DVC, "repro"], printed.append, stop) != 0:
        print("\n".join(printed), file=sys.stderr)
        raise InputError(f"{copy.name} failed: fix the cause, which is above, and run this again to resume")
    copies.save(copy, (), printed.append)


def results(found: Mapping[str, Any], names: Mapping[str, tuple[str, int]]) -> dict[str, dict[str, list[float]]]:
    """Return perplexity and BLEU of the validation set, and the parameters, by row: one value per seed, in order."""
    measured: dict[str, dict[str, list[float]]] = {}
    for name, (row, _) in names.items():
        metrics = found[name].metrics["results/metrics.json"]["data"]
        for key in ("valid_ppl", "valid_bleu", "params"):
            measured.setdefault(row, {}).setdefault(key, []).append(float(metrics[key]))
    return measured


class Interval(NamedTuple):
    """A mean over seeds and its 95% interval by Student's t; unbounded for a single seed."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        from scipy.stats import t

        mean, half = statistics.fmean(values), math.inf
        if len(values) > 1:
            half = float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
        return cls(mean, mean - half, mean + half)

    def text(self, digits: int, sign: str = "") -> str:
        mean, low, high = (f"{value:{sign}.{digits}f}" for value in self)
        return f"{mean} (one seed)" if math.isinf(self.low) else f"{mean} ({low} to {high})"


def trend(difference: Interval, paper: float | None, digits: int) -> str:
    """Return what a row's difference from base says, beside the paper's difference."""
    theirs = "" if paper is None else f"; the paper's {paper:+.{digits}f}"
    found = f"{difference.text(digits, '+')}{theirs}:"
    if difference.low <= 0 <= difference.high:
        return f"{found} these seeds show no difference from base."
    if not paper:
        return f"{found} differs from base."
    agrees = "as in the paper" if (difference.mean > 0) == (paper > 0) else "against the paper"
    return f"{found} a difference from base, {agrees}."


def report(plan: Plan, measured: Mapping[str, Mapping[str, Sequence[float]]], seeds: int) -> str:
    """Return the table and a sentence on every difference from base, in Markdown.

    Differences are between the runs of one seed, which share the order of the sentences and, where shapes agree, first
    weights and dropout masks.
    """
    budget = ", ".join(f"{key} {value}" for key, value in plan.training.items())
    caption = (
        f"Corpus {plan.corpus}, {plan.pair}, validation set, last checkpoint; widths divided by {plan.width}, layers "
        f"by {plan.depth}; {budget}; {seeds} seeds, 95% intervals by Student's t, of differences over the seeds' pairs "
        "of runs. The paper's are newstest2013's."
    )
    lines = [caption, "", "| row | params | PPL | BLEU | paper PPL | paper BLEU |", "|---|---|---|---|---|---|"]
    sentences = [""]
    base = rows.row("base").paper
    for row, values in measured.items():
        paper = rows.row(row).paper
        ppl, bleu = Interval.of(values["valid_ppl"]).text(2), Interval.of(values["valid_bleu"]).text(1)
        millions = f"{values['params'][0] / 1e6:.2f} M"
        lines.append(f"| `{row}` | {millions} | {ppl} | {bleu} | {paper.ppl or ''} | {paper.bleu or ''} |")
        if row == "base" or "base" not in measured:
            continue
        for key, title, digits, theirs, of_base in (
            ("valid_ppl", "perplexity", 2, paper.ppl, base.ppl),
            ("valid_bleu", "BLEU", 1, paper.bleu, base.bleu),
        ):
            printed = None if theirs is None or of_base is None else theirs - of_base
            pairs = zip(values[key], measured["base"][key], strict=True)
            difference = Interval.of([one - other for one, other in pairs])
            sentences.append(f"- {row}: {title} {trend(difference, printed, digits)}")
    return "\n".join([*lines, *sentences]) + "\n"


def plan_of(corpus: str | None, width: int, depth: int, merges: int, training: Mapping[str, Any]) -> Plan:
    """Return the plan of an ablation of params.yaml's pair, and by default of its corpus.

    Raises InputError where params.yaml has overrides, or a pair whose score is not BLEU.
    """
    params = validated(Params, read_params(), PARAMS)
    if params.overrides:
        raise InputError(
            "params.yaml: `overrides` would change the settings of every row: empty them (--updates, --tokens and "
            "others set what all runs share)"
        )
    if task_of(params.pair) is not TRANSLATION:
        raise InputError(
            f"params.yaml: pair is {params.pair}, but Table 3's rows are compared by BLEU: set another pair"
        )
    repository = copies.commit(Path.cwd()) + hashlib.sha256(source.difference(*source.CODE)).hexdigest()
    size = "vocabulary" if rows.settings("base", params.pair)["subwords"]["merges"] is None else "merges"
    subwords = {size: merges}
    return Plan(params.pair, corpus or params.corpus, width, depth, training, subwords, repository)


def run(plan: Plan, rows_: Sequence[str], seeds: Sequence[int], jobs: int) -> str:
    """Run the missing experiments and return the report. Raises InputError where the settings do not fit."""
    names = {plan.name(row, seed): (row, seed) for row in rows_ for seed in seeds}
    for row, seed in names.values():
        # Refuses wrong settings now, not in a stage of the last run.
        resolve(plan.params(row, seed))
    commit = copies.commit(Path.cwd())
    try:
        run_all(plan, names, finished(commit).keys(), jobs)
    except KeyboardInterrupt:
        print("ablation: stopped; the same command resumes it", file=sys.stderr)
        raise
    return report(plan, results(finished(commit), names), len(set(seeds)))


@app.command(rich_help_panel="Runs")
def ablation(
    rows: Annotated[list[str], typer.Option(metavar="ROW", help="A row of the paper's tables; may be repeated.")] = [
        "base",
        "A-h1",
        "B-dk16",
        "C-N2",
        "D-pdrop0.0",
        "D-eps0.0",
        "E-learned-positions",
    ],
    seeds: Annotated[list[int], typer.Option(metavar="SEED", help="A seed of all rows; may be repeated.")] = [
        1,
        2,
        3,
    ],
    corpus: Annotated[str | None, typer.Option(help="A file of data/catalog/; params.yaml's by default.")] = None,
    width: Annotated[int, typer.Option(min=1, help="Divides every width.")] = 4,
    depth: Annotated[int, typer.Option(min=1, help="Divides the layers.")] = 2,
    updates: Annotated[int, typer.Option(help="Updates of every run.")] = 1000,
    tokens: Annotated[int, typer.Option(help="Target tokens per update.")] = 1500,
    warmup: Annotated[int, typer.Option(help="Updates of warm-up.")] = 400,
    merges: Annotated[int, typer.Option(help="BPE merges, or word pieces.")] = 4000,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 1,
    rate: Annotated[float, typer.Option(help="Multiplies Eq. 3.")] = 1.0,
    precision: Annotated[Precision, typer.Option(help="Precision of the matrix products.")] = "float32",
    out: Annotated[Path, typer.Option(metavar="FILE", help="The report.")] = Path("results/ablation.md"),
) -> None:
    """Train rows of Table 3, scaled down together, with several seeds under one budget, and compare them.

    Every run is a DVC experiment of params.yaml's pair (`dvc exp show` lists them) and of the repository as it is when
    the ablation begins. Experiments that exist already are not run again. All rows have their widths (d_model, d_ff,
    d_k, d_v) divided by --width and their layers by --depth; heads, dropout, label smoothing and positions are the
    row's own. The ablation compares perplexity and BLEU of the validation set, from the last checkpoint, as in Table 3.

    \b
    Example:
      wmt ablation --rows base --rows C-N2 --seeds 1 --seeds 2 --updates 1000
    """
    training = {
        "updates": updates,
        "tokens": tokens,
        "shards": 1 << (max(1, tokens // SHARD_TOKENS).bit_length() - 1),
        "warmup_steps": warmup,
        "learning_rate_scale": rate,
        "precision": precision,
        "validate_every": updates,
        "checkpoint_every": max(1, updates // CHECKPOINTS),
        "keep_checkpoints": CHECKPOINTS,
    }
    out = output_file(out, PARAMS, DVC_YAML)
    text = run(plan_of(corpus, width, depth, merges, training), rows, seeds, jobs)
    with writing(out) as temporary:
        temporary.write_text(text, encoding="utf-8")
    print(text)
