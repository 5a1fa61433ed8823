"""Before days of work: which stages would run, the disk, memory and operations they need, and about how long.

Nothing is written. The speed of training is measured for a few seconds with the configured model on this machine;
the rest is arithmetic on the resolved configuration and the corpora's known sizes, as rough as it says.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt.config import InputError
from nmt.flops import LengthSums, parameters, training_flops
from pipeline import stage
from pipeline.config import graph, resolution
from pipeline.config.paths import CONFIG
from pipeline.config.settings import Configuration
from pipeline.corpora import archive_cache
from pipeline.tracking import evidence
from pipeline.training import launch

STATS = Path("data/binned/stats.json")
MAKERS = {"data/raw": "download", "data/tokenized": "tokenize", "data/binned": "binarize", "models": "average"}
"""Outputs that take room, and the last stage that makes each."""
KNOWN_PAIRS = {
    ("en-de", "commoncrawl", "europarl-v7", "news-commentary-v9"): 4_508_785,
    ("en-de", "commoncrawl", "europarl-v7", "news-commentary-v11"): 4_508_785,
    ("en-fr", "commoncrawl", "europarl-v7", "giga-fren", "news-commentary-v9", "un"): 40_836_715,
}
"""Training pairs by language pair and texts. News Commentary 11 is larger than 9 by less than these estimates err."""

LINE = 150
"""Bytes of a line of raw text, about, where the text is not at hand."""
COMPRESSION = 3
"""Plain text over its archive, about."""
SUBWORDS = 28
"""Subwords of a sentence, about, EOS included."""
SPREAD = 1.5
"""The mean of squared lengths over the square of the mean length, about."""
LINES_A_SECOND = 14_000
"""What sacremoses tokenises on one core."""
RESERVE = 700 * 2**20
"""Bytes of a process that trains nothing yet: torch and its libraries."""


@dataclass(frozen=True)
class Corpus:
    """The size of the training corpus."""

    pairs: int
    subwords: float
    """Of a target sentence, on average."""
    vocabulary: int
    origin: str
    """Where these numbers come from, in words."""


@dataclass(frozen=True)
class Needs:
    """What a run takes, in bytes and operations."""

    disk: Mapping[str, int]
    memory: int
    """Of each training process: on a GPU the GPU's."""
    flops: int


def corpus_size(configuration: Configuration, prepared: bool) -> Corpus:
    """Counted where the corpus is `prepared`; else known, or guessed from bytes."""
    subwords = configuration.subwords
    if prepared and STATS.exists():
        stats = stage.read_json(STATS)
        pairs = int(stats["pairs"])
        return Corpus(pairs, stats["target_tokens"] / pairs, int(stats["vocabulary"]), f"counted in {STATS}")
    # Characters and pieces of words come on top of what merges make: 32,000 give about 37,000.
    size = subwords.vocabulary or int(1.15 * (subwords.merges or 0))
    vocabulary = -(-size // subwords.multiple_of) * subwords.multiple_of
    texts = (configuration.run.pair, *sorted(text.name for text in configuration.data.train))
    if texts in KNOWN_PAIRS:
        return Corpus(KNOWN_PAIRS[texts], SUBWORDS, vocabulary, "known")
    local = [Path(text.source.path) for text in configuration.data.train if text.source.path is not None]
    bytes_ = sum(path.stat().st_size for path in local if path.exists())
    used = {text.source.archive for text in configuration.data.train}
    packed = sum(archive.bytes or 0 for archive in configuration.data.archives if archive.name in used)
    # An archive holds both sides.
    pairs = max(1, (bytes_ + packed * COMPRESSION // 2) // LINE)
    return Corpus(pairs, SUBWORDS, vocabulary, "guessed from the bytes of its archives and files")


def length_sums(pairs: int, length: float) -> LengthSums:
    """Sums over `pairs` pairs of `length` subwords on average on both sides."""
    tokens, squared = int(pairs * length), int(pairs * length * length * SPREAD)
    return LengthSums(pairs, tokens, tokens, squared, squared, squared)


def needs(configuration: Configuration, corpus: Corpus, micro_tokens: int) -> Needs:
    """Disk by what it is for, memory of training, and the operations of training."""
    model, training = configuration.model, configuration.training
    weights = 4 * parameters(model, corpus.vocabulary)
    text = 2 * LINE * corpus.pairs
    # The checkpoints in models/ are links to those of the training state, or copies where that is on another disk.
    copies = 0 if disk_of(stage.state_root()) == disk_of(Path("models")) else training.keep_checkpoints
    id_bytes = 2 if corpus.vocabulary <= 65_535 else 4
    disk = {
        "downloads": sum(archive.bytes or 0 for archive in configuration.data.archives),
        "data/raw": text,
        "data/tokenized": int(1.1 * text),
        "data/binned": int(corpus.pairs * (2 * corpus.subwords * id_bytes + 16)),
        "models": weights * (2 + copies),
        # Besides checkpoints the weights and both moments, of the last state and of the one being written.
        "training state": weights * training.keep_checkpoints + 2 * 3 * weights,
    }
    layer = 26 * model.d_model + 4 * model.d_ff + int(6 * model.h * corpus.subwords)
    activations = micro_tokens * (model.N * layer + 4 * model.d_model) * 4
    updates = training.updates * training.tokens
    flops = training_flops(model, corpus.vocabulary, length_sums(int(updates / corpus.subwords), corpus.subwords))
    # Weights, gradients and two moments.
    return Needs(disk, RESERVE + 4 * weights + activations, flops)


def measured_rate(configuration: Configuration, corpus: Corpus, seconds: float = 3.0) -> tuple[float, str]:
    """Operations a second of real updates of this model on one device, the best of a few, and the device's name."""
    import torch

    from nmt.training.batches import MicroBatch, Update
    from nmt.training.distributed import World
    from nmt.training.trainer import Job, Trainer

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    job = Job(model=configuration.model, training=configuration.training, vocabulary=corpus.vocabulary, corpus="none")
    trainer = Trainer(job, World(0, 1, device), micro_tokens=1)
    length = max(2, round(corpus.subwords))
    rows = (8192 if device.type == "cuda" else 512) // length
    ids = torch.randint(4, corpus.vocabulary, (rows, length))
    batch = MicroBatch(ids, ids, torch.arange(rows * length), ids.flatten())
    sums = LengthSums.zero()
    for _ in range(rows):
        sums += LengthSums.of(length, length)
    update = Update(number=1, batches=[batch], sums=sums, padded=2 * rows * length)
    trainer.step(update)  # warms up
    best, end = float("inf"), time.perf_counter() + seconds
    while best == float("inf") or time.perf_counter() < end:
        start = time.perf_counter()
        trainer.step(update)
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    name = torch.cuda.get_device_name() if device.type == "cuda" else evidence.processor()
    return training_flops(configuration.model, corpus.vocabulary, sums) / best, name


@dataclass(frozen=True)
class Recorded:
    """What DVC has on record of a stage's last run."""

    ran: bool
    settings: Mapping[str, Any]
    """Those of the resolved configuration that it reads, by dotted keys, as they were then; None for new keys."""
    changed: list[str]
    """What has changed since of the rest: paths of dependencies, and the command."""


def stages_to_run(configuration: Configuration) -> dict[str, str]:
    """Every stage of dvc.yaml in order, with why it would run, or nothing where it would not."""
    from dvc.utils.serialize import loads_yaml

    stages = graph.stages()
    # Read as DVC reads its record, which is YAML 1.2.
    settings = loads_yaml(resolution.text(configuration))
    before = recorded()
    reasons: dict[str, str] = {}
    for name, declared in stages.items():
        own = sorted(path for path in before[name].changed if graph.made_by(path, stages) is None)
        keys = [key for key, value in before[name].settings.items() if value != value_at(settings, key)]
        sources = [graph.made_by(path, stages) for path in declared.deps]
        follows = sorted({source for source in sources if source is not None and reasons.get(source)})
        if not before[name].ran:
            reasons[name] = "never ran here"
        elif own:
            reasons[name] = f"changed: {', '.join(own)}"
        elif keys:
            reasons[name] = f"settings changed: {', '.join(keys)}"
        else:
            reasons[name] = f"follows {', '.join(follows)}" if follows else ""
    return reasons


def value_at(content: Any, key: str) -> Any:
    """What stands at a dotted key of nested mappings."""
    for part in key.split("."):
        content = content[part]
    return content


def recorded() -> dict[str, Recorded]:
    """What DVC has on record of every stage; raises InputError where it cannot be read."""
    from dvc.dependency import ParamsDependency
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo() as repo:
            status, stages = repo.status(), list(repo.index.stages)
    except DvcException as error:
        raise InputError(f"dvc status fails ({error}): run this in the repository's root, a git clone of it") from error
    found: dict[str, Recorded] = {}
    for one in stages:
        settings: dict[str, Any] = {}
        for dep in one.deps:
            if isinstance(dep, ParamsDependency) and dep.def_path == str(CONFIG):
                settings = dict.fromkeys(dep.params) | (dep.hash_info.value or {})
        changed: list[str] = []
        for change in status.get(one.addressing, ()):
            if change == "changed command":
                changed.append("the command")
            elif isinstance(change, dict):
                changed += change.get("changed deps", ())
        ran = any(out.hash_info for out in one.outs)
        found[one.addressing] = Recorded(ran, settings, [path for path in changed if path != str(CONFIG)])
    return found


def size(number: float) -> str:
    """Bytes in the unit that suits them."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:,.0f} {unit}" if unit == "bytes" else f"{number:,.1f} {unit}"
        number /= 1024
    return f"{number:,.1f} TiB"


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them."""
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{max(2.0, seconds):.0f} seconds"


def dvc_cache() -> Path:
    """Where DVC keeps every output's bytes; on the disk of the outputs they are links and take no room of their own."""
    config = subprocess.run([sys.executable, "-m", "dvc", "cache", "dir"], capture_output=True, text=True, check=False)
    return Path(config.stdout.strip() if config.returncode == 0 and config.stdout.strip() else ".dvc/cache")


def standing(path: Path) -> Path:
    """The path or, where nothing stands there yet, the nearest folder above it that does."""
    while not path.exists():
        path = path.absolute().parent
    return path


def disk_of(path: Path) -> int:
    """The number of the file system that a path is on or will be."""
    return standing(path).stat().st_dev


def resumable(configuration: Configuration, vocabulary: int) -> int:
    """Bytes of the state that this training would go on from."""
    from pipeline.stages.train import state_folder

    state = state_folder({**configuration.model_dump(include={"model", "training"}), "vocabulary": vocabulary})
    files = [path.stat() for path in state.rglob("*") if path.is_file()]
    return sum({file.st_ino: file.st_size for file in files}.values())


def still_needed(
    wanted: Needs, configuration: Configuration, vocabulary: int, reasons: Mapping[str, str]
) -> dict[str, int]:
    """The bytes of `wanted.disk` that are not there yet. What stands there of other runs is no part of this one."""
    # An output that is made again takes its room anew: DVC's cache keeps the old one.
    kept = {name for name, maker in MAKERS.items() if not reasons[maker] and Path(name).exists()}
    left = {name: 0 if name in kept else wanted.disk[name] for name in MAKERS}
    archives = [] if "data/raw" in kept else configuration.data.archives
    left["downloads"] = sum(
        archive_cache.left(one, archive_cache.Shelf.of(one, stage.state_root())) for one in archives
    )
    left["training state"] = wanted.disk["training state"] if reasons["train"] else 0
    if reasons["train"] and "data/binned" in kept:
        # The data that a state is named by are there, so that of an interrupted training may be.
        left["training state"] = max(0, left["training state"] - resumable(configuration, vocabulary))
    return left


def tell(*, measure: bool) -> bool:
    """Print the plan; returns whether disk and memory suffice. `measure` the speed of training, too.

    Raises InputError where params.yaml is wrong or DVC's record cannot be read.
    """
    configuration = resolution.resolve(resolution.read_params())
    reasons = stages_to_run(configuration)
    run = configuration.run
    print(f"{run.pair}, row {run.row}, corpus {run.corpus}, seed {run.seed}\n")
    for name, reason in reasons.items():
        print(f"  {name:15} {f'would run ({reason})' if reason else 'unchanged'}")
    print("\n  (What DVC's cache holds from an earlier run is restored instead.)\n")
    corpus = corpus_size(configuration, prepared=not reasons.get("binarize"))
    wanted = needs(configuration, corpus, int(os.environ.get("NMT_MICRO_TOKENS", "4096")))
    left, gpus = still_needed(wanted, configuration, corpus.vocabulary, reasons), launch.gpus()
    enough = [tell_disk(wanted, left, dvc_cache()), tell_memory(wanted, gpus)]
    count = parameters(configuration.model, corpus.vocabulary)
    print(f"\n  corpus          {corpus.pairs:,} pairs of {corpus.subwords:.0f} subwords ({corpus.origin})")
    print(f"  parameters      {count:,} with a vocabulary of {corpus.vocabulary:,}")
    print(f"  training        {wanted.flops:.2e} operations in {configuration.training.updates:,} updates")
    if measure:
        tell_time(configuration, corpus, wanted, reasons, gpus or 1)
    return all(enough)


def tell_disk(wanted: Needs, left: Mapping[str, int], cache_folder: Path) -> bool:
    """Print what takes room and, disk by disk, whether what is `left` of it has room; returns whether all has."""
    copied = {name for name in MAKERS if disk_of(Path(name)) != disk_of(cache_folder)}
    needed = {**wanted.disk, "DVC cache": sum(wanted.disk[name] for name in copied)}
    missing = {**left, "DVC cache": sum(left[name] for name in copied)}
    places = {name: stage.state_root() for name in ("downloads", "training state")} | {"DVC cache": cache_folder}
    disks: dict[int, list[str]] = {}
    for name, number in needed.items():
        disks.setdefault(disk_of(places.get(name, Path(name))), []).append(name)
        note = "  (links to the above)" if name == "DVC cache" and not copied else ""
        print(f"  {name:26} {size(number):>12}, {size(missing[name]):>12} of it not there yet{note}")
    enough = True
    for names in disks.values():
        where = standing(places.get(names[0], Path(names[0])))
        more, free = sum(missing[name] for name in names), shutil.disk_usage(where).free
        told = f"{size(more)} more are needed, {size(free)} are free{'' if more <= free else ': NOT ENOUGH'}"
        print(f"  disk            {told}" + (f" (that of {', '.join(names)})" if len(disks) > 1 else ""))
        enough = enough and more <= free
    return enough


def tell_memory(wanted: Needs, gpus: int) -> bool:
    """Print the memory of training; returns whether it suffices: the machine's is no matter where a GPU trains."""
    if gpus:
        print(f"  memory          {size(wanted.memory)} of each GPU; one with less is given smaller micro-batches")
        return True
    enough = wanted.memory <= evidence.memory()
    told = f"{size(wanted.memory)} for a process that trains, {size(evidence.memory())} in this machine"
    print(f"  memory          {told}{'' if enough else ': NOT ENOUGH'}")
    return enough


def tell_time(
    configuration: Configuration, corpus: Corpus, wanted: Needs, reasons: Mapping[str, str], devices: int
) -> None:
    """Print how long the long stages would take here."""
    rate, device = measured_rate(configuration, corpus)
    seconds = wanted.flops / rate / devices
    print(f"  measured        {rate / 1e9:,.0f} GFLOPS of real updates on {device}; {devices} such")
    print(f"  train           about {duration(seconds)}{'' if reasons.get('train') else ', if it ran'}")
    cores = os.cpu_count() or 1
    if configuration.preparation.tokenizer.tokenizer == "moses":
        print(f"  tokenize        about {duration(2 * corpus.pairs / LINES_A_SECOND / cores)} on {cores} cores")
