"""Ranks that train together, as processes of this machine: forked from a server that has imported torch already.

No rank outlives its test: the ranks die with the server, the server with the tests, and `ranks` kills what is left.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

DEADLINE = 200.0
"""Seconds that ranks may take on a busy machine; a test file's own timeout is longer."""

Target = Callable[..., Any]


def _rank(rank: int, size: int, folder: Path, store: str, home: Path | None, target: Target, given: Any) -> None:
    """One rank: its output goes to a file, what `target` returns to another."""
    import torch

    from nmt.dist import world
    from nmt.parent import die_with_parent

    die_with_parent()
    with (folder / f"rank-{rank}.log").open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
    torch.set_num_threads(1)
    if home is not None:
        os.chdir(home)
    try:
        with world(store=f"file://{folder / store}") as place:
            result = target(place, *given)
        (folder / f"rank-{rank}.json").write_text(json.dumps(result), encoding="utf-8")
    except BaseException:
        traceback.print_exc()
        raise


@contextmanager
def ranks(
    size: int, folder: Path, target: Target, *given: Any, store: str = "store", homes: Sequence[Path | None] = ()
) -> Iterator[list[BaseProcess]]:
    """Start `target(world, *given)` on each of `size` ranks that meet over a file; kill those that are left at the end.

    `homes`: the working directory of each, if not this one.
    """
    context = multiprocessing.get_context("forkserver")
    # `ranks` is this module, `nmt.trainer` brings torch: both are imported once.
    context.set_forkserver_preload(["nmt.trainer", "ranks"])
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


def finished(processes: Sequence[BaseProcess]) -> list[int | None]:
    """Wait until all have ended; returns their exit codes, None for one that is not at its end by the deadline."""
    end = time.monotonic() + DEADLINE
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


# What ranks do in tests: imported by name in their processes, so it stands here.


def training(place: Any, job: dict[str, Any], folder: str, bucket: int | None = None) -> bool:
    """A whole training; `bucket`: the bytes that are summed together."""
    from nmt import gradients
    from nmt.trainer import Job, train

    if bucket is not None:
        gradients.BUCKET = bucket
    return train(Job.model_validate(job), Path(folder), place, 64)


def disturbed_training(place: Any, job: dict[str, Any], folder: str, update: int, rank: int, number: int) -> bool:
    """A training in which one rank sends itself a signal after an update."""
    from nmt.trainer import Trainer

    step = Trainer.step

    def watched(self: Trainer, given: Any) -> None:
        step(self, given)
        if given.number == update and place.rank == rank:
            os.kill(os.getpid(), signal.Signals(number))

    Trainer.step = watched  # type: ignore[method-assign]
    return training(place, job, folder)
