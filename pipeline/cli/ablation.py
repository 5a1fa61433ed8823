"""`wmt ablation`: train rows of Table 3, scaled down together, with several seeds, and compare them."""

import hashlib
import math
import os
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated, Any, NamedTuple

import typer

from nmt.common.files import write_text
from nmt.errors import InputError
from nmt.task import TRANSLATION, task_of
from pipeline.config import machine, rows
from pipeline.config.corpora import Pair
from pipeline.config.errors import validated
from pipeline.config.git import CODE, difference, head
from pipeline.config.paths import PARAMS
from pipeline.config.resolution import Params, read_params, resolve
from pipeline.flows import copies

app = typer.Typer()

OUT = Path("results/ablation.md")
WIDTHS = ("d_model", "d_ff", "d_k", "d_v")
CHECKPOINTS = 5  # checkpoints of each run, all of which are averaged; `big` would ask for 20
LOG = 60  # last lines of a run's output that are printed when it fails
Names = Mapping[str, tuple[str, int]]  # an experiment's name -> its row and seed


@dataclass(frozen=True)
class Plan:
    pair: Pair
    corpus: str
    width: int
    depth: int
    overrides: Mapping[str, Mapping[str, Any]]
    repository: str  # the commit and a hash of the uncommitted changes

    def params(self, row: str, seed: int) -> dict[str, Any]:
        """Return the content of params.yaml for a run. Raises InputError where a size is divided to 0."""
        settings = rows.settings(row, self.pair)["model"]
        model = {"N": settings["N"] // self.depth, **{key: settings[key] // self.width for key in WIDTHS}}
        for key, value in model.items():
            if value < 1:
                raise InputError(f"row {row}: {key} of {settings[key]} is divided to 0: lower --width or --depth")
        overrides = {**self.overrides, "model": model}
        return {"row": row, "pair": self.pair, "corpus": self.corpus, "seed": seed, "overrides": overrides}

    def name(self, row: str, seed: int) -> str:
        """Return the experiment's name, which tells settings, checksums and code apart. Raises as `resolve` does."""
        content = resolve(self.params(row, seed)).model_dump_json() + self.repository
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
    experiments = [experiment for revision in shown for experiment in revision.experiments or ()]
    return {
        str(one.name): one[0].data for one in experiments if one.executor is None or one.executor.state == "success"
    }


def run_all(plan: Plan, names: Names, known: Collection[str], jobs: int) -> None:
    """Run the missing experiments, `jobs` at a time. Raises InputError where one fails; the others stop, resumable.

    All copies are made first, so that later edits do not change the ablation. `dvc exp run --temp` would be shorter,
    but of several such processes one takes the experiment that another queued.
    """
    missing = [name for name in names if name not in known]
    print(f"{len(missing)} runs of {len(names)} to do", flush=True)
    if jobs > 1:  # Simultaneous runs share the cores; the launcher would give each run all of them.
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, machine.available_cores() // jobs)))
    devices, gpus = SimpleQueue[dict[str, str]](), [gpu.id for gpu in machine.gpus()]
    for job in range(jobs):
        # Each job has GPUs of its own, if they suffice.
        shared_out = gpus[job::jobs] or gpus[job % max(1, len(gpus)) :][:1]
        devices.put({"CUDA_VISIBLE_DEVICES": ",".join(shared_out)} if shared_out else {})
    started, stopped = time.monotonic(), threading.Event()

    def stop() -> None:
        if stopped.is_set():
            raise InterruptedError

    with ExitStack() as made, ThreadPoolExecutor(jobs) as pool:
        work = [made.enter_context(copies.made(Path.cwd(), name, plan.params(*names[name]))) for name in missing]
        futures = [pool.submit(run_experiment, copy, stop, devices) for copy in work]
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                future.result()
                print(f"{done} of {len(missing)} runs, {(time.monotonic() - started) / 60:.0f} minutes", flush=True)
        except BaseException:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def run_experiment(copy: Path, stop: Callable[[], None], devices: SimpleQueue[dict[str, str]]) -> None:
    """Run all stages and save the experiment, calling `stop` often. Raises InputError where a stage fails.

    Takes the variables that name its GPUs from `devices`, and puts them back.
    """
    printed, variables = deque[str](maxlen=LOG), devices.get()
    try:
        status = copies.run(copy, [*copies.DVC, "repro"], printed.append, stop, **variables)
    finally:
        devices.put(variables)
    if status == 0:
        with suppress(ChildProcessError):
            return copies.save(copy, (), printed.append)
    print("\n".join(printed), file=sys.stderr)
    raise InputError(f"{copy.name} failed: fix the cause, which is above, and run this again to resume")


def results(experiments: Mapping[str, Any], names: Names) -> dict[str, dict[str, list[float]]]:
    """Return perplexity and BLEU of the validation set, and the parameters, by row: one value per seed, in order."""
    measured: dict[str, dict[str, list[float]]] = {}
    for name, (row, _) in names.items():
        metrics = experiments[name].metrics["results/metrics.json"]["data"]
        for key in ("valid_ppl", "valid_bleu", "params"):
            measured.setdefault(row, {}).setdefault(key, []).append(float(metrics[key]))
    return measured


class Interval(NamedTuple):
    """A mean over seeds and its 95% interval by Student's t; unbounded for a single seed."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval":
        from scipy.stats import t

        mean, half = statistics.fmean(values), math.inf
        if len(values) > 1:
            half = float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
        return cls(mean, mean - half, mean + half)

    def text(self, digits: int, sign: str = "") -> str:
        mean, low, high = (f"{value:{sign}.{digits}f}" for value in self)
        return f"{mean} (one seed)" if math.isinf(self.low) else f"{mean} ({low} to {high})"


def trend(difference: Interval, paper: float | None, digits: int) -> str:
    """Return a row's difference from base, the paper's, and whether the two agree."""
    if paper is None:
        return difference.text(digits, "+")
    agrees = "as in the paper" if difference.mean * paper > 0 else "against the paper"
    verdict = "these seeds show none" if difference.low <= 0 <= difference.high else agrees
    return f"{difference.text(digits, '+')}; the paper's {paper:+.{digits}f}: {verdict}"


def markdown(caption: str, measured: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Return the table in Markdown, with every row's differences from base.

    Differences are between the runs of one seed, which share the order of the sentences and, where shapes agree, first
    weights and dropout masks.
    """
    header = "| row | params | PPL | paper's | difference from base | BLEU | paper's | difference from base |"
    lines = [caption, "", header, "|---" * 8 + "|"]
    papers = {row: rows.row(row).paper for row in ("base", *measured)}
    for row, values in measured.items():
        cells = [f"`{row}`", f"{values['params'][0] / 1e6:.2f} M"]
        for key, field, digits in (("valid_ppl", "ppl", 2), ("valid_bleu", "bleu", 1)):
            theirs, of_base = (getattr(papers[name], field) for name in (row, "base"))
            cells += [Interval.of(values[key]).text(digits), str(theirs or ""), ""]
            if row != "base" and "base" in measured:
                pairs = zip(values[key], measured["base"][key], strict=True)
                difference = Interval.of([one - other for one, other in pairs])
                cells[-1] = trend(difference, None if theirs is None else theirs - of_base, digits)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def caption_of(plan: Plan) -> str:
    budget = ", ".join(f"{key} {value}" for section in plan.overrides.values() for key, value in section.items())
    return (
        f"Corpus {plan.corpus}, {plan.pair}, validation set, last checkpoint; widths divided by {plan.width}, layers "
        f"by {plan.depth}; {budget}. 95% intervals by Student's t over the seeds; differences from base are between "
        "runs of one seed. The paper's are newstest2013's."
    )


def plan_of(corpus: str | None, width: int, depth: int, updates: int, rate: float) -> Plan:
    """Return the plan of an ablation of params.yaml's pair, by default of its corpus, with its overrides.

    Raises InputError where these would change the models of all rows, or where the pair's score is not BLEU.
    """
    from nmt.evaluation import bleu

    params = validated(Params, read_params(), PARAMS)
    given = {section: values for section, values in (params.overrides or {}).items() if values}
    if "model" in given or given.get("training", {}).get("start_from"):
        key = "model" if "model" in given else "training.start_from"
        raise InputError(f"{PARAMS}: overrides.{key} would change the model of every row: remove it")
    if task_of(params.pair) is not TRANSLATION:
        raise InputError(f"{PARAMS}: pair is {params.pair}, but Table 3's rows are compared by BLEU: set another pair")
    # Without the language's segmenter the rows would have chrF alone.
    bleu.metric(params.pair.rpartition("-")[2], given.get("scoring", {}).get("tokenize"))
    sized = "vocabulary" if rows.settings("base", params.pair)["subwords"]["merges"] is None else "merges"
    training = {"tokens": 1500, "shards": 1, "warmup_steps": 400, "precision": "float32"}
    budget = {"updates": updates, "learning_rate_scale": rate, "validate_every": updates}
    budget |= {"checkpoint_every": max(1, updates // CHECKPOINTS), "keep_checkpoints": CHECKPOINTS}
    averaging = {"last": min(CHECKPOINTS, updates), "best": None}
    shared = rows.merge_sections({"training": training, "subwords": {sized: 4000}}, given)
    overrides = rows.merge_sections(shared, {"training": budget, "averaging": averaging})
    repository = head() + hashlib.sha256(difference(*CODE)).hexdigest()
    return Plan(params.pair, corpus or params.corpus, width, depth, overrides, repository)


TABLE3 = ["base", "A-h1", "B-dk16", "C-N2", "D-pdrop0.0", "D-eps0.0", "E-learned-positions"]


@app.command(rich_help_panel="Runs")
def ablation(
    rows: Annotated[
        list[str], typer.Option(metavar="ROW", help="A row of the paper's tables; may be repeated.")
    ] = TABLE3,
    seeds: Annotated[list[int], typer.Option(metavar="SEED", help="A seed of all rows; may be repeated.")] = [1, 2, 3],
    corpus: Annotated[str | None, typer.Option(help="A file of data/catalog/; params.yaml's by default.")] = None,
    width: Annotated[int, typer.Option(min=1, help="Divides every width.")] = 4,
    depth: Annotated[int, typer.Option(min=1, help="Divides the layers.")] = 2,
    updates: Annotated[int, typer.Option(help="Updates of every run.")] = 1000,
    rate: Annotated[float, typer.Option(help="Multiplies Eq. 3.")] = 1.0,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 1,
) -> None:
    """Train rows of Table 3, scaled down together, with several seeds under one budget, and compare them.

    Every run is a DVC experiment of params.yaml's pair (`dvc exp show` lists them) and of the repository as it is when
    the ablation begins. Experiments that exist already are not run again. All rows have their widths (d_model, d_ff,
    d_k, d_v) divided by --width and their layers by --depth; heads, dropout, label smoothing and positions are the
    row's own. The overrides of params.yaml may set what else all runs share, but for the rate, validations and
    checkpoints: by default float32, one shard, 1,500 target tokens an update, 400 updates of warm-up, 4,000 merges or
    pieces. results/ablation.md compares perplexity and BLEU of the validation set, from the last checkpoint, as in
    Table 3.

    \b
    Example:
      wmt ablation --rows base --rows C-N2 --seeds 1 --seeds 2 --updates 1000
    """
    plan = plan_of(corpus, width, depth, updates, rate)
    names = {plan.name(row, seed): (row, seed) for row in rows for seed in seeds}
    commit = head()
    run_all(plan, names, finished(commit).keys(), jobs)
    text = markdown(caption_of(plan), results(finished(commit), names))
    write_text(OUT, text)
    print(text)
