"""Ranks that train together, as processes of this machine: forked from a server that has imported torch already.

No rank outlives its test: the ranks die with the server, the server with the tests, and `ranks` kills what is left.
"""

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

DEADLINE = 200.0  # seconds that ranks may take on a busy machine; a test file's own timeout is longer

Target = Callable[..., Any]


def _rank(rank: int, size: int, folder: Path, store: str, home: Path | None, target: Target, given: Any) -> None:
    """One rank: its output goes to a file, what `target` returns to another."""
    import torch

    from nmt.common.processes import die_with_parent
    from nmt.training.distributed import join_world

    die_with_parent()
    with (folder / f"rank-{rank}.log").open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
    torch.set_num_threads(1)
    if home is not None:
        os.chdir(home)
    with join_world(size, f"file://{folder / store}") as world:
        result = target(world, *given)
    assert not torch.distributed.is_initialized()
    (folder / f"rank-{rank}.json").write_text(json.dumps(result), encoding="utf-8")


def _server() -> multiprocessing.context.ForkServerContext:
    """The server that ranks are forked from; it has imported what their first optimizer does, and their main module."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["nmt.training.loop", "torch._dynamo", "pytest"])
    before = os.environ.get("PYTHONPATH")
    # Up to Python 3.12 the server has not our sys.path.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        forkserver.ensure_running()
    finally:
        os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)
    return context


@contextmanager
def ranks(
    size: int, folder: Path, target: Target, *given: Any, store: str = "store", homes: Sequence[Path | None] = ()
) -> Iterator[list[BaseProcess]]:
    """Start `target(world, *given)` on each of `size` ranks that meet over a file; kill those that are left at the end.

    `homes`: the working directory of each, if not this one.
    """
    context = _server()
    folder.mkdir(parents=True, exist_ok=True)
    places = homes or [None] * size
    processes: list[BaseProcess] = [
        context.Process(target=_rank, args=(rank, size, folder, store, places[rank], target, given))
        for rank in range(size)
    ]
    try:
        for process in processes:
            process.start()
        yield processes
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()


def finished(processes: Sequence[BaseProcess], seconds: float = DEADLINE) -> list[int | None]:
    """Wait until all have ended; returns their exit codes, None for one that is not at its end by the deadline."""
    end = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
    return [process.exitcode for process in processes]


def results(size: int, folder: Path, target: Target, *given: Any, **how: Any) -> list[Any]:
    """What `target` returns on each rank; fails with the ranks' output where one of them does not end well."""
    with ranks(size, folder, target, *given, **how) as processes:
        statuses = finished(processes)
    assert statuses == [0] * size, (statuses, output(folder))
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(size)]


def output(folder: Path) -> str:
    """What all ranks in `folder` printed."""
    return "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("rank-*.log")))


# What ranks do in tests: found by name in their processes, so it stands here.


def training(world: Any, job: dict[str, Any], folder: str) -> bool:
    """A whole training."""
    from nmt.training.distributed import peer_is_lost
    from nmt.training.loop import train
    from nmt.training.settings import Job

    try:
        return train(Job.model_validate(job), Path(folder), world)
    except Exception as error:
        if peer_is_lost(error):
            Path(folder, "lost-the-others").touch()
        raise


def disturbed_training(world: Any, job: dict[str, Any], folder: str, update: int, rank: int, number: int) -> bool:
    """A training in which one rank sends itself a signal after an update."""
    from nmt.training.trainer import Trainer

    step = Trainer.step

    def watched(self: Trainer, given: Any) -> None:
        step(self, given)
        if given.number == update and world.rank == rank:
            os.kill(os.getpid(), number)

    Trainer.step = watched
    return training(world, job, folder)


def overlapped_gradients(world: Any, job: dict[str, Any]) -> list[list[int]]:
    """Compare the sums of ten updates' gradients in no fixed order with those along the tree.

    Return what was done in each update: the length of a bucket whose sum began, 0 for a gradient that was added.
    """
    import torch

    from nmt.training import gradients
    from nmt.training.batches import Corpus, train_files
    from nmt.training.settings import Job
    from nmt.training.trainer import Trainer

    done: list[list[int]] = []
    begin, added = gradients.all_reduce, gradients.OverlappedGradients._added
    gradients.all_reduce = lambda values, **given: (done[-1].append(values.numel()), begin(values, **given))[1]
    gradients.OverlappedGradients._added = lambda *given: (done[-1].append(0), added(*given))[1]
    gradients.BUCKET = 1000
    settings = Job.model_validate(job)
    trainers = [Trainer(settings, world)]
    Trainer.in_fixed_order = False
    trainers.append(Trainer(settings, world))
    for update in trainers[0].updates(Corpus(train_files(Path(settings.corpus))), 10):
        done.append([])
        for trainer in trainers:
            trainer.optimizer.step = lambda: None
            trainer.step(update)
        torch.testing.assert_close(*([parameter.grad for parameter in trainer.parameters] for trainer in trainers))
    return done


def main_module_failing(world: Any, folder: str, where: str, store: str) -> None:
    """What torchrun runs; a rank fails in saving, the last in the forward pass or a sum of the third update.

    Leaving the group waits for all ranks, as it does with NCCL.
    """
    from functools import partial

    import torch
    from torch import distributed

    from nmt.training import gradients, loop, state
    from nmt.training.distributed import World, join_world
    from nmt.training.trainer import Trainer

    distributed.barrier()  # A rank that leaves while another still connects makes that one fail.
    leave = distributed.destroy_process_group
    leave()

    def failing(*given: Any, **options: Any) -> None:
        if where == "memory":
            torch.empty(2**60, dtype=torch.uint8)
        raise OSError(f"no room in {where}")

    def step(self: Trainer, update: Any, real: Any = Trainer.step) -> None:
        if update.number == 3 and world.rank == (0 if where == "saving" else world.size - 1):
            sums = {"sum": (World, "tree_sum"), "overlapped sum": (gradients, "all_reduce")}
            owner, name = {"saving": (state, "save_tensors"), **sums}.get(where, (Trainer, "losses"))
            setattr(owner, name, failing)
        real(self, update)

    Trainer.step = step
    if where == "overlapped sum":
        Trainer.in_fixed_order = False
    distributed.destroy_process_group = lambda: (distributed.barrier(), leave())
    loop.join_world = partial(join_world, store=store)
    sys.argv = ["trainer", folder]
    loop.main()
