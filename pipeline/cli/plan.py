"""`wmt plan`: the stages that would run, and the disk, memory, operations and time that they need."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, NamedTuple

import typer
from humanize import naturalsize

from nmt.common.cpu import processor
from nmt.errors import InputError
from nmt.flops import LengthSums, parameters, training_flops
from pipeline.cli.repository import running_stage
from pipeline.config import graph, machine, resolution
from pipeline.config.paths import BINNED_STATS, CONFIG, read_json
from pipeline.config.settings import Configuration
from pipeline.config.wording import duration
from pipeline.data import parent, user_text
from pipeline.trainings import launch

app = typer.Typer()

KNOWN_PAIRS = {("wmt14", "en-de"): 4_508_785, ("wmt16-t2t", "en-de"): 4_508_785, ("wmt14", "en-fr"): 40_836_715}
"""Training pairs. News Commentary 11 of wmt16-t2t is larger than 9 by less than the estimates' error."""

# Approximate values for what is not measured on this machine.
LINE = 150  # bytes of a line of raw text
COMPRESSION = 3  # bytes of plain text per byte of its archive
SUBWORDS = 28  # of a sentence, EOS included
SYMBOLS = 128  # of a closed vocabulary of trees
SPREAD = 1.5  # mean of squared lengths over the square of the mean length
RESERVE = 700 * 2**20  # bytes of a process before it trains: torch and its libraries

size = partial(naturalsize, binary=True)


@app.command("plan", rich_help_panel="Runs")
def plan_run(
    no_measure: Annotated[bool, typer.Option("--no-measure", help="Do not measure, and estimate no time.")] = False,
) -> None:
    """List the stages that would run, and estimate the disk, memory, operations and time that they need.

    It writes nothing. It measures the speed of training for a few seconds with the configured model on this machine,
    and estimates everything else from the configuration and the known sizes of the corpora. The exit status is 1 where
    disk or memory do not suffice.

    \b
    Example:
      wmt plan --no-measure
    """
    raise typer.Exit(0 if report(not no_measure) else 1)


class CorpusSize(NamedTuple):
    pairs: int
    subwords: float  # mean length of a target sentence
    vocabulary: int
    origin: str  # of these numbers, for the printed plan
    target_vocabulary: int | None = None  # where the target has its own

    @property
    def output_rows(self) -> int:  # of the pre-softmax product
        return self.target_vocabulary or self.vocabulary


def corpus_size(configuration: Configuration, prepared: bool) -> CorpusSize:
    """Return the training corpus's size: counted where it is `prepared`, else known, or guessed from bytes."""
    subwords, run = configuration.subwords, configuration.run
    if prepared and BINNED_STATS.exists():
        stats = read_json(BINNED_STATS)
        mean, symbols = stats["target_tokens"] / stats["pairs"], stats.get("target_vocabulary")
        return CorpusSize(stats["pairs"], mean, stats["vocabulary"], f"counted in {BINNED_STATS}", symbols)
    # Characters and unmerged pieces add to the merges: 32,000 give about 37,000.
    learned = subwords.vocabulary or int(1.15 * (subwords.merges or 0))
    vocabulary = -(-learned // subwords.multiple_of) * subwords.multiple_of
    symbols = SYMBOLS if subwords.target == "closed" else None
    if pairs := KNOWN_PAIRS.get((run.corpus, run.pair)):
        return CorpusSize(pairs, SUBWORDS, vocabulary, "known", symbols)
    local = [Path(text.source.path) for text in configuration.data.train if text.source.path is not None]
    bytes_ = sum(path.stat().st_size for path in local if path.exists())
    used = {text.source.archive for text in configuration.data.train}
    packed = sum(archive.bytes or 0 for archive in configuration.data.archives if archive.name in used)
    # An archive contains both sides.
    pairs = max(1, (bytes_ + packed * COMPRESSION // 2) // LINE)
    return CorpusSize(pairs, SUBWORDS, vocabulary, "guessed from the bytes of its archives and files", symbols)


def needs(configuration: Configuration, corpus: CorpusSize) -> tuple[dict[str, int], int, int]:
    """Return the bytes of disk by stage, of memory of each training process, and the operations of training."""
    model, training = configuration.model, configuration.training
    weights = 4 * parameters(model, corpus.vocabulary, corpus.target_vocabulary)
    text = 2 * LINE * corpus.pairs
    id_bytes = 2 if corpus.vocabulary <= 65_535 else 4
    disk = {
        "download": sum(archive.bytes or 0 for archive in configuration.data.archives) + text,
        "tokenize": int(1.1 * text),
        "binarize": int(corpus.pairs * (2 * corpus.subwords * id_bytes + 16)),
        # The checkpoints, and weights and both moments of the kept states, the last and the one being written.
        "train": weights * (training.keep_checkpoints + 3 * (training.keep_states + 2)),
        "average": 2 * weights,
    }
    layer = 26 * model.d_model + 4 * model.d_ff + int(6 * model.h * corpus.subwords)
    activations = training.tokens // training.shards * (model.N * layer + 4 * model.d_model) * 4
    tokens = training.updates * training.tokens
    squared = int(tokens * corpus.subwords * SPREAD)
    lengths = LengthSums(int(tokens / corpus.subwords), tokens, tokens, squared, squared, squared)
    # Weights, two moments, and gradients: a process that has all shards keeps as many sums as the tree has levels.
    gradients = max(1, training.shards.bit_length() - 1)
    memory = RESERVE + (3 + gradients) * weights + activations
    return disk, memory, training_flops(model, corpus.output_rows, lengths)


def measured_rate(configuration: Configuration, corpus: CorpusSize, seconds: float = 3.0) -> float:
    """Return the operations per second of real updates of this model on one device, the best of a few."""
    import torch

    from nmt.packing import pack_tensor
    from nmt.training.batches import Batch, Update
    from nmt.training.distributed import World
    from nmt.training.settings import Job
    from nmt.training.trainer import Trainer

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # One shard as large as the row's on a GPU, a smaller one on a CPU, where an update takes long.
    training, model = configuration.training.model_copy(update={"shards": 1}), configuration.model
    vocabulary, symbols = corpus.vocabulary, corpus.target_vocabulary
    job = Job(model=model, training=training, vocabulary=vocabulary, target_vocabulary=symbols, corpus="none")
    trainer = Trainer(job, World(0, 1, device))
    length = max(2, round(corpus.subwords))
    positions = training.tokens // configuration.training.shards
    rows = max(1, (positions if device.type == "cuda" else min(positions, 512)) // length)
    ids = torch.randint(4, min(vocabulary, corpus.output_rows), (rows, length))
    batch = Batch(pack_tensor(ids), pack_tensor(ids), ids.flatten())
    sums = sum((LengthSums.of(length, length) for _ in range(rows)), LengthSums())
    update = Update(number=1, first=0, shards=[batch], sums=sums, padded=2 * rows * length)
    trainer.step(update)  # warms up
    times: list[float] = []
    while sum(times) < seconds:
        start = time.perf_counter()
        trainer.step(update)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return training_flops(model, corpus.output_rows, sums) / min(times)


def stages_to_run(configuration: Configuration) -> dict[str, str]:
    """Return every stage with why it would run, or ""; raise InputError where DVC cannot read its record."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    declared, reasons = graph.stages(), dict[str, str]()
    try:
        with Repo() as repo, TemporaryDirectory() as folder:
            recorded = {stage.addressing: stage for stage in repo.index.stages}
            resolved = Path(folder, CONFIG.name)
            resolved.write_text(resolution.text(configuration), encoding="utf-8")
            for name in declared:
                changed = ["the command"] if recorded[name].cmd_changed else []
                for dep in recorded[name].deps:
                    if dep.def_path == str(CONFIG) and reasons["resolve"]:
                        dep.fs_path = str(resolved)  # compared with what the stage read
                    for path, how in dep.status().items():
                        # Settings are a mapping by name. What another stage makes is told of that stage.
                        changed += how if isinstance(how, dict) else [] if graph.made_by(path, declared) else [path]
                makers = {graph.made_by(path, declared) for path in declared[name].deps}
                follows = sorted(maker for maker in makers if maker and reasons[maker])
                if not any(out.hash_info for out in recorded[name].outs):
                    reasons[name] = "never ran here"
                elif changed:
                    reasons[name] = f"changed: {', '.join(sorted(changed))}"
                else:
                    reasons[name] = f"follows {', '.join(follows)}" if follows else ""
    except DvcException as error:
        raise InputError(f"DVC cannot say what changed ({error}): run this in the root of a git clone") from error
    return reasons


def report(measure: bool) -> bool:
    """Print the plan, with the time of training here if `measure`; return whether disk and memory suffice."""
    configuration = resolution.resolve(resolution.read_params())
    with suppress(InputError):  # Where a local file is missing, `resolve` says so.
        configuration = configuration.model_copy(update={"data": user_text.identified(configuration.data)})
    configuration = parent.identified(configuration)
    run, training = configuration.run, configuration.training
    reasons = stages_to_run(configuration)
    corpus = corpus_size(configuration, prepared=not reasons.get("binarize"))
    disk, needed, operations = needs(configuration, corpus)
    print(f"{run.pair}, row {run.row}, corpus {run.corpus}, seed {run.seed}\n")
    if stage := running_stage():
        print(f"  A run is going on in this folder, at its stage {stage}; what it has not finished is listed, too.\n")
    if start := training.start_from:
        print(f"  It starts from {start.folder}, weights {start.weights}.\n")
    for name, reason in reasons.items():
        print(f"  {name:15} {f'would run ({reason})' if reason else 'unchanged'}")
    print("\n  (Where DVC's cache has the result already, it is restored and nothing runs.)\n")
    written, free = sum(number for name, number in disk.items() if reasons[name]), shutil.disk_usage(".").free
    memory, gpus = machine.memory(), machine.gpus()
    where = "of each GPU" if gpus else "in this machine"
    short = [" NOT ENOUGH" if most < least else "" for least, most in ((written, free), (needed, memory))]
    print(f"  disk            {size(written)} are written, {size(free)} are free{short[0]}")
    print(f"  memory          {size(needed)} for a process that trains, {size(memory)} {where}{short[1]}")
    if len(gpus) == 1 < training.shards:
        gain = "is faster where it fits in memory (by estimate twice for base), and is another training"
        print(f"  shards          {training.shards} on one GPU: training.shards=1 {gain}")
    print()
    print(f"  corpus          {corpus.pairs:,} pairs of {corpus.subwords:.0f} subwords ({corpus.origin})")
    count = parameters(configuration.model, corpus.vocabulary, corpus.target_vocabulary)
    own = f", {corpus.target_vocabulary:,} of the target" if corpus.target_vocabulary else ""
    print(f"  parameters      {count:,} with a vocabulary of {corpus.vocabulary:,}{own}")
    print(f"  training        {operations:.2e} operations in {training.updates:,} updates")
    if measure:
        os.environ.update(launch.environment(1))  # read by torch as it is imported
        atexit.unregister(gc.freeze)  # Triton, which fused Adam imports, would report frozen objects as leaks.
        devices = launch.processes(training.shards) if gpus else 1
        rate, device = measured_rate(configuration, corpus), gpus[0].name if gpus else processor()
        print(f"  measured        {rate / 1e9:,.0f} GFLOPS of real updates on one {device}")
        own = f" on {devices} of them" if devices > 1 else ""
        print(f"  train           about {duration(operations / rate / devices)}{own}")
    return not any(short)
