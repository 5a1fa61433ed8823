"""`wmt ablation`: train rows of Table 3, scaled down together, with several seeds, and compare them.

Every run is a DVC experiment in a copy of the repository.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt.common.files import output_file, parse_yaml, writing
from nmt.config import InputError
from nmt.evaluation.paired import line_statistics
from pipeline.commands.differences import ConfidenceInterval, paired, table
from pipeline.common.paths import CONFIG, PARAMS, RAW, TRANSLATIONS
from pipeline.common.settings import Pair
from pipeline.config import rows
from pipeline.config.errors import validated
from pipeline.config.resolution import Params, read_params, resolve
from pipeline.config.scorer import BLEU, scorer_of
from pipeline.machine import available_cores
from pipeline.runs import copies, evidence, stage_tracker
from pipeline.runs.pipeline_run import Run
from pipeline.runs.record import Record, keep, lock, runs_folder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WIDTHS = ("d_model", "d_ff", "d_k", "d_v")
CHECKPOINTS = 5
"""Checkpoints of each run, all of which are averaged; `big` would ask for 20."""
SHARD_TOKENS = 2048
"""Subwords a side of a shard, at most twice as many: enough to fill a matrix product on a CPU."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `wmt ablation`, whose help explains them."""

    rows: Sequence[str]
    seeds: Sequence[int]
    corpus: str | None
    width: int
    depth: int
    updates: int
    tokens: int
    warmup: int
    merges: int
    jobs: int
    rate: float
    precision: str
    out: Path


@dataclass(frozen=True)
class Plan:
    """The settings that all runs of an ablation share."""

    pair: Pair
    corpus: str
    width: int
    depth: int
    training: Mapping[str, Any]
    subwords: Mapping[str, Any]
    repository: str
    """The commit and a hash of the uncommitted changes."""

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

    @property
    def study(self) -> str:
        """The name of the record that all runs have as parent: equal for equal settings and code alone."""
        what = json.dumps([self.pair, self.corpus, self.width, self.depth, self.training, self.subwords])
        digest = hashlib.sha256((what + self.repository).encode()).hexdigest()[:6]
        return f"ablation-{self.corpus}-{self.pair}-{digest}"

    def name(self, row: str, seed: int) -> str:
        """Return the experiment's name: equal names mean equal settings and code."""
        content = json.dumps([self.params(row, seed), self.repository], sort_keys=True)
        return f"ablation-{row.replace('.', '_')}-{seed}-{hashlib.sha256(content.encode()).hexdigest()[:6]}"


def finished(commit: str) -> dict[str, dict[str, Any]]:
    """Return the data of the finished experiments of a commit by name. Raises InputError where DVC fails."""
    command = ["dvc", "exp", "show", "--json", "--rev", commit]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        error = next((line for line in result.stderr.split("\n") if line.startswith("ERROR")), result.stderr.strip())
        raise InputError(f"`dvc exp show` failed: {error}")
    return {
        str(experiment["name"]): experiment["revs"][0]["data"]
        for commit in json.loads(result.stdout)
        for experiment in commit.get("experiments") or []
        if (experiment.get("executor") or {"state": "success"})["state"] == "success"
    }


def run_of(plan: Plan, name: str) -> Run:
    """Return the run of that name. Its output goes to its log only."""
    return Run(Path.cwd(), name, name, lambda line: None, plan.study)


def run_experiment(run: Run, params: Mapping[str, Any], stopped: threading.Event) -> None:
    """Run all stages and save the experiment. Raises InputError where a stage fails, InterruptedError if stopped."""

    def stop() -> None:
        if stopped.is_set():
            raise InterruptedError(f"{run.name} was stopped")

    try:
        run.begin(params, None)
        if run.dvc("repro", tick=stop) != 0:
            raise InputError(
                f"{run.name} failed: read {run.folder / 'log'}, fix the cause and run this again to resume"
            )
        run.save(())
    finally:
        run.close()
    run.remove()


def run_all(plan: Plan, names: Mapping[str, tuple[str, int]], known: Collection[str], jobs: int) -> None:
    """Run the missing experiments, `jobs` at a time. Raises InputError where one fails, after the running ones end.

    All copies are made first, so that later edits do not change the ablation. `dvc exp run --temp` would be shorter,
    but of several such processes one takes the experiment that another queued.
    """
    # Earlier calls leave copies: of a failed run, with its old code, or of a killed run, which may still be ending.
    for left in (run_of(plan, name) for name in names):
        with copies.held(left.folder):
            left.remove()
    missing = [name for name in names if name not in known]
    print(f"{len(missing)} runs of {len(names)} to do", flush=True)
    # Simultaneous runs share the cores; the launcher would give each run all of them.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, available_cores() // jobs)))
    runs = {name: run_of(plan, name) for name in missing}
    params = {name: plan.params(*names[name]) for name in missing}
    started, stopped = time.monotonic(), threading.Event()
    with ExitStack() as owned, ThreadPoolExecutor(jobs) as pool:
        for name, run in runs.items():
            # A run that begins removes old copies that nobody owns, also those that wait here.
            owned.enter_context(copies.held(run.folder, "owner"))
            copies.make(run.original, run.folder, params[name])
        futures = [pool.submit(run_experiment, run, params[name], stopped) for name, run in runs.items()]
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                future.result()
                spent = (time.monotonic() - started) / 60
                print(f"{done} of {len(missing)} runs, {spent:.0f} minutes", flush=True)
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            if not isinstance(error, InputError):
                stopped.set()
            for run, future in zip(runs.values(), futures, strict=True):
                if future.cancelled():
                    run.remove()
            raise


def results(
    found: Mapping[str, dict[str, Any]], names: Mapping[str, tuple[str, int]]
) -> dict[str, dict[str, list[float]]]:
    """Return perplexity and BLEU of the validation set, and the parameters, by row: one value per seed, in order."""
    measured: dict[str, dict[str, list[float]]] = {}
    for name, (row, _) in names.items():
        metrics = found[name]["metrics"]["results/metrics.json"]["data"]
        values = measured.setdefault(row, {"ppl": [], "bleu": [], "params": []})
        for key, metric in (("ppl", "ppl_valid"), ("bleu", "bleu_valid"), ("params", "params")):
            values[key].append(float(metrics[metric]))
    return measured


def lines_of(names: Mapping[str, tuple[str, int]]) -> dict[str, list[NDArray[np.int64]]]:
    """Return by row, one for each seed, what BLEU sums over the lines of the validation set (nmt/evaluation/paired.py).

    Raises InputError where DVC's cache no longer has an experiment's translations.
    """
    from dvc.api import DVCFileSystem
    from dvc.exceptions import DvcException

    found: dict[str, list[NDArray[np.int64]]] = {}
    for name, (row, _) in names.items():
        try:
            files = DVCFileSystem(rev=name)
            data = parse_yaml(files.read_bytes(str(CONFIG)))["data"]
            valid, target = data["valid"]["name"], data["target"]
            paths = (TRANSLATIONS / f"{valid}.last.{target}", RAW / f"valid.{valid}.{target}")
            texts = [files.read_bytes(str(path)).decode().removesuffix("\n").split("\n") for path in paths]
        except (DvcException, OSError) as error:
            raise InputError(
                f"{name}: DVC's cache has no translations of it ({error}): `dvc exp remove {name}`, and run this again"
            ) from error
        found.setdefault(row, []).append(line_statistics(*texts))
    return found


def trend(row: str, kind: str, differences: ConfidenceInterval, paper: float | None) -> str:
    """Return a sentence on a row's difference from base, beside the paper's difference."""
    measure, digits = ("perplexity", 2) if kind == "ppl" else ("BLEU", 1)
    theirs = "" if paper is None else f"; the paper's {paper:+.{digits}f}"
    found = differences.text(digits, "+")
    if differences.low <= 0 <= differences.high:
        return f"{row}: {measure} {found}{theirs}: these seeds show no difference from base."
    if paper is None or paper == 0:
        return f"{row}: {measure} {found}{theirs}: differs from base."
    agrees = "as in the paper" if (differences.mean > 0) == (paper > 0) else "against the paper"
    return f"{row}: {measure} {found}{theirs}: a difference from base, {agrees}."


def report(
    plan: Plan,
    measured: Mapping[str, Mapping[str, Sequence[float]]],
    lines_by_row: Mapping[str, Sequence[NDArray[np.int64]]],
    seeds: int,
) -> str:
    """Return the tables and a sentence on every difference from base, in Markdown."""
    budget = ", ".join(f"{key} {value}" for key, value in plan.training.items())
    caption = (
        f"Corpus {plan.corpus}, {plan.pair}, validation set, last checkpoint; widths divided by {plan.width}, layers "
        f"by {plan.depth}; {budget}; {seeds} seeds, 95% intervals by Student's t. The paper's are newstest2013's."
    )
    lines = [caption, "", "| row | params | PPL | BLEU | paper PPL | paper BLEU |", "|---|---|---|---|---|---|"]
    sentences = []
    base = rows.row("base").paper
    for row, values in measured.items():
        paper = rows.row(row).paper
        ppl, bleu = ConfidenceInterval.of(values["ppl"]), ConfidenceInterval.of(values["bleu"])
        millions = f"{values['params'][0] / 1e6:.2f} M"
        lines.append(
            f"| `{row}` | {millions} | {ppl.text(2)} | {bleu.text(1)} | {paper.ppl or ''} | {paper.bleu or ''} |"
        )
        if row == "base" or "base" not in measured:
            continue
        for kind, theirs, of_base in (("ppl", paper.ppl, base.ppl), ("bleu", paper.bleu, base.bleu)):
            difference = None if theirs is None or of_base is None else theirs - of_base
            interval = paired(values[kind], measured["base"][kind])
            sentences.append(f"- {trend(row, kind, interval, difference)}")
    differences = table(measured, lines_by_row) if "base" in measured and len(measured) > 1 else []
    return "\n".join([*lines, "", *differences, *sentences]) + "\n"


def vocabulary_key(pair: Pair) -> str:
    """Return the setting that sizes the pair's vocabulary: `merges`, or `vocabulary` where its rows give no merges."""
    return "vocabulary" if rows.settings("base", pair)["subwords"]["merges"] is None else "merges"


def run(options: Options) -> str:
    """Run the missing experiments and return the report, which is also written to `options.out`.

    Raises InputError where the settings do not fit, `options.out` is no file to write, or a run fails.
    """
    out = output_file(options.out)
    params = validated(Params, read_params(), PARAMS)
    if params.overrides:
        raise InputError(
            "params.yaml: `overrides` would change the settings of every row: empty them (--updates, --tokens and "
            "others set what all runs share)"
        )
    if scorer_of(params.pair) is not BLEU:
        raise InputError(
            f"params.yaml: pair is {params.pair}, but Table 3's rows are compared by BLEU: set another pair"
        )
    commit = copies.git(Path(), "rev-parse", "HEAD").stdout.decode().strip()
    changed = copies.git(Path(), "diff", *evidence.PLAIN_DIFF, commit, "--", ".", *evidence.NOT_CODE).stdout
    training = {
        "updates": options.updates,
        "tokens": options.tokens,
        "shards": 1 << (max(1, options.tokens // SHARD_TOKENS).bit_length() - 1),
        "warmup_steps": options.warmup,
        "learning_rate_scale": options.rate,
        "precision": options.precision,
        "validate_every": options.updates,
        "checkpoint_every": max(1, options.updates // CHECKPOINTS),
        "keep_checkpoints": CHECKPOINTS,
    }
    subwords = {vocabulary_key(params.pair): options.merges}
    corpus = options.corpus or params.corpus
    repository = commit + hashlib.sha256(changed).hexdigest()
    plan = Plan(params.pair, corpus, options.width, options.depth, training, subwords, repository)
    names = {plan.name(row, seed): (row, seed) for row in options.rows for seed in options.seeds}
    for row, seed in names.values():
        # Refuses wrong settings now, not in a stage of the last run.
        resolve(plan.params(row, seed))
    study = Record(runs_folder() / plan.study)
    settings = {"width": plan.width, "depth": plan.depth, **plan.training, **plan.subwords}
    study.create(pair=plan.pair, corpus=plan.corpus, settings=settings)
    try:
        with lock(study.stage_lock):
            run_all(plan, names, finished(commit).keys(), options.jobs)
    except KeyboardInterrupt:
        print("ablation: stopped; the same command resumes it", file=sys.stderr)
        raise
    text = report(plan, results(finished(commit), names), lines_of(names), len(set(options.seeds)))
    with writing(out) as temporary:
        temporary.write_text(text, encoding="utf-8")
    keep(out, study.results / "ablation.md")
    study.update(complete=True)
    stage_tracker.publish(study, "ablation")
    return text
