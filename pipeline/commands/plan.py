"""Estimate a run before it starts: the stages that would run, disk, memory, operations and time.

Nothing is written. The speed of training is measured for a few seconds with the configured model on this machine;
everything else is estimated from the resolved configuration and the known sizes of the corpora.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, reduce
from operator import getitem
from pathlib import Path
from typing import Any

from dvc.dependency import ParamsDependency
from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.utils.serialize import loads_yaml
from humanize import naturalsize, precisedelta

from nmt.config import InputError
from nmt.flops import LengthSums, parameters, training_flops
from pipeline import machine
from pipeline.commands.rental import Rental
from pipeline.common import stage
from pipeline.common.paths import BINNED_STATS, CONFIG, LOCAL
from pipeline.common.settings import Configuration
from pipeline.config import graph, resolution
from pipeline.corpora import user_text
from pipeline.corpora.archive_cache import missing_bytes
from pipeline.stages.train import job_settings, state_folder
from pipeline.training import launch

MAKERS = {"data/raw": "download", "data/tokenized": "tokenize", "data/binned": "binarize", "models": "average"}
"""Large outputs, and the last stage that writes each."""
KNOWN_PAIRS = {
    ("en-de", "commoncrawl", "europarl-v7", "news-commentary-v9"): 4_508_785,
    ("en-de", "commoncrawl", "europarl-v7", "news-commentary-v11"): 4_508_785,
    ("en-fr", "commoncrawl", "europarl-v7", "giga-fren", "news-commentary-v9", "un"): 40_836_715,
}
"""Training pairs by language pair and texts. News Commentary 11 is larger than 9 by less than the estimates' error."""

# Approximate values for what is not measured on this machine.
LINE = 150  # bytes of a line of raw text
COMPRESSION = 3  # bytes of plain text per byte of its archive
SUBWORDS = 28  # of a sentence, EOS included
SYMBOLS = 128  # of a closed vocabulary of trees
SPREAD = 1.5  # mean of squared lengths over the square of the mean length
LINES_PER_SECOND = 14_000  # that sacremoses tokenises on one core
RESERVE = 700 * 2**20  # bytes of a process before it trains: torch and its libraries

size = partial(naturalsize, binary=True)


@dataclass(frozen=True)
class Corpus:
    """The size of the training corpus."""

    pairs: int
    subwords: float  # mean length of a target sentence
    vocabulary: int
    origin: str  # of these numbers, for the printed plan
    target_vocabulary: int | None = None  # where the target has its own

    @property
    def vocabularies(self) -> dict[str, int]:
        """Return the arguments of a job."""
        own = {} if self.target_vocabulary is None else {"target_vocabulary": self.target_vocabulary}
        return {"vocabulary": self.vocabulary, **own}

    @property
    def output_rows(self) -> int:
        """Return the rows of the pre-softmax product."""
        return self.target_vocabulary or self.vocabulary


@dataclass(frozen=True)
class Needs:
    """What a run needs, in bytes and operations."""

    disk: Mapping[str, int]
    memory: int  # of each training process: on a GPU the GPU's
    flops: int


def corpus_size(configuration: Configuration, prepared: bool) -> Corpus:
    """Return the corpus' size: counted where it is `prepared`, else known, or guessed from bytes."""
    subwords = configuration.subwords
    if prepared and BINNED_STATS.exists():
        stats = stage.read_json(BINNED_STATS)
        pairs = int(stats["pairs"])
        return Corpus(
            pairs,
            stats["target_tokens"] / pairs,
            int(stats["vocabulary"]),
            f"counted in {BINNED_STATS}",
            stats.get("target_vocabulary"),
        )
    # Characters and unmerged pieces add to the merges: 32,000 give about 37,000.
    learned = subwords.vocabulary or int(1.15 * (subwords.merges or 0))
    vocabulary = -(-learned // subwords.multiple_of) * subwords.multiple_of
    symbols = SYMBOLS if subwords.target == "closed" else None
    texts = (configuration.run.pair, *sorted(text.name for text in configuration.data.train))
    if texts in KNOWN_PAIRS:
        return Corpus(KNOWN_PAIRS[texts], SUBWORDS, vocabulary, "known", symbols)
    local = [Path(text.source.path) for text in configuration.data.train if text.source.path is not None]
    bytes_ = sum(path.stat().st_size for path in local if path.exists())
    used = {text.source.archive for text in configuration.data.train}
    packed = sum(archive.bytes or 0 for archive in configuration.data.archives if archive.name in used)
    # An archive contains both sides.
    pairs = max(1, (bytes_ + packed * COMPRESSION // 2) // LINE)
    return Corpus(pairs, SUBWORDS, vocabulary, "guessed from the bytes of its archives and files", symbols)


def needs(configuration: Configuration, corpus: Corpus) -> Needs:
    """Return the disk by purpose, the memory and the operations of training."""
    model, training = configuration.model, configuration.training
    weights = 4 * parameters(model, **corpus.vocabularies)
    text = 2 * LINE * corpus.pairs
    # The checkpoints in models/ are links into the training state, or copies if that is on another disk.
    copies = 0 if disk_of(stage.state_root()) == disk_of(Path("models")) else training.keep_checkpoints
    id_bytes = 2 if corpus.vocabulary <= 65_535 else 4
    disk = {
        "downloads": sum(archive.bytes or 0 for archive in configuration.data.archives),
        "data/raw": text,
        "data/tokenized": int(1.1 * text),
        "data/binned": int(corpus.pairs * (2 * corpus.subwords * id_bytes + 16)),
        "models": weights * (2 + copies),
        # The checkpoints, and weights and both moments of the kept states, the last and the one being written.
        "training state": weights * training.keep_checkpoints + (training.keep_states + 2) * 3 * weights,
    }
    layer = 26 * model.d_model + 4 * model.d_ff + int(6 * model.h * corpus.subwords)
    activations = training.tokens // training.shards * (model.N * layer + 4 * model.d_model) * 4
    tokens = training.updates * training.tokens
    squared = int(tokens * corpus.subwords * SPREAD)
    lengths = LengthSums(int(tokens / corpus.subwords), tokens, tokens, squared, squared, squared)
    flops = training_flops(model, corpus.output_rows, lengths)
    # Weights, two moments, and gradients: a process that has all shards keeps as many sums as the tree has levels.
    gradients = max(1, training.shards.bit_length() - 1)
    return Needs(disk, RESERVE + (3 + gradients) * weights + activations, flops)


def measured_rate(configuration: Configuration, corpus: Corpus, seconds: float = 3.0) -> tuple[float, str]:
    """Return the operations per second of real updates of this model on one device, the best of a few, and its name."""
    import torch

    from nmt.config import Job
    from nmt.training.batches import Batch, Update
    from nmt.training.distributed import World
    from nmt.training.trainer import Trainer

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # One shard as large as the row's on a GPU, a smaller one on a CPU, where an update takes long.
    training = configuration.training.model_copy(update={"shards": 1})
    job = Job(model=configuration.model, training=training, corpus="none", **corpus.vocabularies)
    trainer = Trainer(job, World(0, 1, device))
    length = max(2, round(corpus.subwords))
    positions = configuration.training.tokens // configuration.training.shards
    rows = max(1, min(positions, positions if device.type == "cuda" else 512) // length)
    ids = torch.randint(4, min(corpus.vocabulary, corpus.output_rows), (rows, length))
    batch = Batch(ids, ids, torch.arange(rows * length), ids.flatten())
    sums = sum((LengthSums.of(length, length) for _ in range(rows)), LengthSums.zero())
    update = Update(number=1, first=0, shards=[batch], sums=sums, padded=2 * rows * length)
    trainer.step(update)  # warms up
    times: list[float] = []
    while sum(times) < seconds:
        start = time.perf_counter()
        trainer.step(update)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    name = torch.cuda.get_device_name() if device.type == "cuda" else machine.processor()
    return training_flops(configuration.model, corpus.output_rows, sums) / min(times), name


def stages_to_run(configuration: Configuration) -> dict[str, str]:
    """Return every stage with why it would run, or ""; raise InputError where DVC cannot read its record or a text."""
    for link in sorted(LOCAL.rglob("*")):
        if not link.exists():
            raise InputError(
                f"{link} leads to {link.readlink()}, which is not there, and DVC hashes all of {LOCAL}, also for `dvc "
                "repro`: restore that file, or remove the link"
            )
    # Parsed as DVC parses its record, by YAML 1.2.
    settings = loads_yaml(resolution.text(configuration))
    try:
        with Repo() as repo:
            status, recorded = repo.status(), {one.addressing: one for one in repo.index.stages}
    except DvcException as error:
        raise InputError(f"dvc status fails ({error}): run this in the repository's root, a git clone of it") from error
    declared = graph.stages()
    reasons: dict[str, str] = {}
    for name in declared:
        makers = [graph.made_by(path, declared) for path in declared[name].deps]
        follows = sorted({maker for maker in makers if maker and reasons[maker]})
        changed = _changed(status.get(name, ()), declared)
        keys = [
            key
            for dep in recorded[name].deps
            if isinstance(dep, ParamsDependency) and dep.def_path == str(CONFIG)
            for key in dep.params
            if (dep.hash_info.value or {}).get(key) != reduce(getitem, key.split("."), settings)
        ]
        if not any(out.hash_info for out in recorded[name].outs):
            reasons[name] = "never ran here"
        elif changed:
            reasons[name] = f"changed: {', '.join(changed)}"
        elif keys:
            reasons[name] = f"settings changed: {', '.join(keys)}"
        else:
            reasons[name] = f"follows {', '.join(follows)}" if follows else ""
    return reasons


def _changed(status: Any, declared: Mapping[str, graph.Stage]) -> list[str]:
    """Return what changed by DVC's status of one stage, except settings and outputs of other stages."""
    changed = ["the command"] if "changed command" in status else []
    deps = [path for change in status if isinstance(change, dict) for path in change.get("changed deps", ())]
    return sorted([*changed, *(path for path in deps if path != str(CONFIG) and not graph.made_by(path, declared))])


def dvc_cache() -> Path:
    """Return the folder of DVC's cache.

    If it is on the outputs' disk, they are links into it and need no extra room.
    """
    with Repo() as repo:
        return Path(repo.cache.local.path)


def existing(path: Path) -> Path:
    """Return the path or, where it does not exist yet, the nearest folder above it that does."""
    while not path.exists():
        path = path.absolute().parent
    return path


def disk_of(path: Path) -> int:
    """Return the number of the file system that a path is on or will be."""
    return existing(path).stat().st_dev


def still_needed(
    needed: Needs, configuration: Configuration, corpus: Corpus, reasons: Mapping[str, str]
) -> dict[str, int]:
    """Return the bytes of `needed.disk` that do not exist yet. Files of other runs do not count."""
    # An output that is made again needs its room again: DVC's cache keeps the old one.
    kept = {name for name, maker in MAKERS.items() if not reasons[maker] and Path(name).exists()}
    left = {name: 0 if name in kept else needed.disk[name] for name in MAKERS}
    archives = [] if "data/raw" in kept else configuration.data.archives
    left["downloads"] = sum(missing_bytes(archive, stage.state_root()) for archive in archives)
    left["training state"] = needed.disk["training state"] if reasons["train"] else 0
    if reasons["train"] and "data/binned" in kept:
        # A state's name contains the hash of the data, so it can only be looked up where they exist.
        state = state_folder(job_settings(configuration.model, configuration.training, corpus.vocabularies))
        files = [path.stat() for path in state.rglob("*") if path.is_file()]
        saved = sum({file.st_ino: file.st_size for file in files}.values())
        left["training state"] = max(0, left["training state"] - saved)
    return left


def report(*, measure: bool, rental: Rental | None = None) -> bool:
    """Print the plan, with the time of training here if `measure`; return whether disk and memory suffice."""
    configuration = resolution.resolve(resolution.read_params())
    with suppress(InputError):  # Where a local file is missing, `resolve` says so.
        configuration = configuration.model_copy(update={"data": user_text.identified(configuration.data)})
    reasons = stages_to_run(configuration)
    run = configuration.run
    print(f"{run.pair}, row {run.row}, corpus {run.corpus}, seed {run.seed}\n")
    for name, reason in reasons.items():
        print(f"  {name:15} {f'would run ({reason})' if reason else 'unchanged'}")
    if not reasons["resolve"] and any("versions." in reason for reason in reasons.values()):
        print("\n  (DVC does not see that a library changed: run `dvc repro --force --single-item resolve` first.)")
    print("\n  (Where DVC's cache has the result already, it is restored and nothing runs.)\n")
    corpus = corpus_size(configuration, prepared=not reasons.get("binarize"))
    needed = needs(configuration, corpus)
    left, gpus = still_needed(needed, configuration, corpus, reasons), launch.count_gpus()
    processes = launch.processes(configuration.training.shards)
    enough = [report_disk(needed, left, dvc_cache()), report_memory(needed, gpus)]
    count = parameters(configuration.model, **corpus.vocabularies)
    own = f", {corpus.target_vocabulary:,} of the target" if corpus.target_vocabulary else ""
    print(f"\n  corpus          {corpus.pairs:,} pairs of {corpus.subwords:.0f} subwords ({corpus.origin})")
    print(f"  parameters      {count:,} with a vocabulary of {corpus.vocabulary:,}{own}")
    print(f"  training        {needed.flops:.2e} operations in {configuration.training.updates:,} updates")
    if measure:
        report_time(configuration, corpus, needed, reasons, processes if gpus else 1)
    if rental is not None:
        print(f"  train, rented   {rental.estimate(needed.flops, configuration.training.precision)}")
    return all(enough)


def report_disk(needed: Needs, left: Mapping[str, int], cache_folder: Path) -> bool:
    """Print the bytes needed and those `left` to write, disk by disk; return whether every disk has room."""
    copied = {name for name in MAKERS if disk_of(Path(name)) != disk_of(cache_folder)}
    total = {**needed.disk, "DVC cache": sum(needed.disk[name] for name in copied)}
    missing = {**left, "DVC cache": sum(left[name] for name in copied)}
    folders = {name: stage.state_root() for name in ("downloads", "training state")} | {"DVC cache": cache_folder}
    disks: dict[int, list[str]] = {}
    for name, number in total.items():
        disks.setdefault(disk_of(folders.get(name, Path(name))), []).append(name)
        note = "  (links to the above)" if name == "DVC cache" and not copied else ""
        print(f"  {name:26} {size(number):>12}, {size(missing[name]):>12} of it not there yet{note}")
    enough = True
    for names in disks.values():
        more = sum(missing[name] for name in names)
        free = shutil.disk_usage(existing(folders.get(names[0], Path(names[0])))).free
        line = f"{size(more)} more are needed, {size(free)} are free{'' if more <= free else ': NOT ENOUGH'}"
        print(f"  disk            {line}" + (f" (that of {', '.join(names)})" if len(disks) > 1 else ""))
        enough = enough and more <= free
    return enough


def report_memory(needed: Needs, gpus: int) -> bool:
    """Print the memory of training; return whether it suffices. With a GPU the machine's memory does not matter."""
    enough = bool(gpus) or needed.memory <= machine.memory()
    where = "of each GPU"
    if not gpus:
        where = f"for a process that trains, {size(machine.memory())} in this machine{'' if enough else ': NOT ENOUGH'}"
    print(f"  memory          {size(needed.memory)} {where}")
    return enough


def report_time(
    configuration: Configuration, corpus: Corpus, needed: Needs, reasons: Mapping[str, str], devices: int
) -> None:
    """Print how long the long stages would take here."""

    def about(seconds: float) -> str:
        return "about " + precisedelta(seconds, minimum_unit="minutes" if seconds > 120 else "seconds", format="%.0f")

    rate, device = measured_rate(configuration, corpus)
    print(f"  measured        {rate / 1e9:,.0f} GFLOPS of real updates on {device}; {devices} such devices")
    print(f"  train           {about(needed.flops / rate / devices)}{'' if reasons.get('train') else ', if it ran'}")
    cores = os.cpu_count() or 1
    if configuration.preparation.tokenizer.tokenizer == "moses":
        print(f"  tokenize        {about(2 * corpus.pairs / LINES_PER_SECOND / cores)} on {cores} cores")
