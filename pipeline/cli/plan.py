"""`wmt plan`: the stages that would run, and the disk, memory, operations and time that they need."""

import atexit
import gc
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from humanize import naturalsize

from nmt.common.cpu import processor
from nmt.errors import InputError, tell
from nmt.flops import parameters
from pipeline.cli.repository import check_lock, running_stage
from pipeline.config import graph, machine, resolution
from pipeline.config.paths import CONFIG
from pipeline.config.settings import Configuration
from pipeline.config.wording import duration
from pipeline.data import parent, user_text
from pipeline.trainings import launch
from pipeline.trainings.cost import corpus_size, measured_rate, needs, root_apart

app = typer.Typer()

size = partial(naturalsize, binary=True)
LACKING = " NOT ENOUGH"


@app.command("plan", rich_help_panel="Runs")
def plan_run(
    no_measure: Annotated[bool, typer.Option("--no-measure", help="Do not measure, and estimate no time.")] = False,
) -> None:
    """List the stages that would run, and estimate the disk, memory, operations and time that they need.

    It writes nothing. It measures the speed of training for a few seconds with the configured model on this machine,
    and estimates everything else from the configuration and the sizes of the corpora, known or guessed from bytes. The
    exit status is 1 where disk or memory do not suffice.

    \b
    Example:
      wmt plan --no-measure
    """
    raise typer.Exit(0 if report(not no_measure) else 1)


def stages_to_run(configuration: Configuration) -> dict[str, str]:
    """Return every stage with why it would run, or ""; raise InputError where DVC cannot read its record."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    declared, reasons = graph.stages(), dict[str, str]()
    check_lock()
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
                        # Settings are a mapping by name. An output of another stage is reported with that stage.
                        changed += how if isinstance(how, dict) else [] if graph.made_by(path, declared) else [path]
                makers = {graph.made_by(path, declared) for path in declared[name].deps}
                follows = sorted(maker for maker in makers if maker and reasons[maker])
                if not any(out.hash_info for out in recorded[name].outs):
                    reasons[name] = "never ran here"
                elif changed:
                    reasons[name] = f"changed: {', '.join(sorted(changed))}"
                elif follows:
                    reasons[name] = f"follows {', '.join(follows)}"
                else:
                    gone = [out.def_path for out in recorded[name].outs if not out.exists and out.changed_cache()]
                    reasons[name] = f"missing: {', '.join(gone)}" if gone else ""
    except DvcException as error:
        raise InputError(f"DVC cannot say what changed ({error}): run this in the root of a git clone") from error
    return reasons


def written(disk: Mapping[str, tuple[int, int]]) -> dict[Path, int]:
    """Return bytes by folder: the repository, and a state root on another disk; `disk` is as `needs` returns it."""
    in_root, here = (sum(sizes[at] for sizes in disk.values()) for at in (0, 1))
    root = root_apart()
    return {Path(): here, root: in_root} if root else {Path(): here + in_root}


def report(measure: bool) -> bool:
    """Print the plan, with the time of training here if `measure`; return whether disk and memory suffice."""
    configuration = resolution.resolve(resolution.read_params())
    try:
        configuration = configuration.model_copy(update={"data": user_text.with_checksums(configuration.data)})
    except InputError as error:  # The text may come later.
        tell(f"plan: `resolve` would refuse: {error}")
    configuration = parent.with_parent(configuration)
    run, training = configuration.run, configuration.training
    machine.hide_gpus_if_portable(training.arithmetic)
    reasons = stages_to_run(configuration)
    missing = [path for stage in graph.stages().values() for path in stage.outs if not Path(path).exists()]
    if not missing and not any(reasons.values()):
        print(f"{run.pair}, row {run.row}, corpus {run.corpus}, seed {run.seed}: nothing to do, nothing has changed")
        return True
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
    short = False
    for folder, least in written({name: sizes for name, sizes in disk.items() if reasons[name]}).items():
        free = shutil.disk_usage(folder).free
        short |= free < least
        where = f" in {folder}" if folder.name else ""
        lacking = LACKING if free < least else ""
        print(f"  disk            {size(least)} are written, {size(free)} are free{where}{lacking}")
    if not reasons.get("train"):
        return not short
    memory, gpus = machine.memory(), machine.gpus()
    where = "of each GPU" if gpus else "in this machine"
    processes = launch.process_count(training.shards, needed)
    taker = "the process that trains" if gpus or processes == 1 else f"each of the {processes} processes that train"
    print(f"  memory          {size(needed)} for {taker}, {size(memory)} {where}{LACKING if memory < needed else ''}")
    if gpus and memory < needed and not training.deterministic:
        print("                  training.deterministic: true takes the shards in turn, which needs less memory")
    print()
    print(f"  corpus          {corpus.pairs:,} pairs of {corpus.subwords:.0f} subwords ({corpus.origin})")
    count = parameters(configuration.model, corpus.vocabulary, corpus.target_vocabulary)
    suffix = f", {corpus.target_vocabulary:,} of the target" if corpus.target_vocabulary else ""
    print(f"  parameters      {count:,} with a vocabulary of {corpus.vocabulary:,}{suffix}")
    print(f"  training        {operations:.2e} operations in {training.updates:,} updates")
    if measure and memory >= needed:
        atexit.unregister(gc.freeze)  # Triton, which fused Adam imports, would report frozen objects as leaks.
        devices = launch.process_count(training.shards) if gpus else 1
        rate = measured_rate(configuration, corpus)
        device = gpus[0].name if gpus else processor()
        print(f"  measured        {rate / 1e9:,.0f} GFLOPS of real updates on one {device}")
        suffix = f" on {devices} of them" if devices > 1 else ""
        print(f"  train           about {duration(operations / rate / devices)}{suffix}")
    return not short and memory >= needed
