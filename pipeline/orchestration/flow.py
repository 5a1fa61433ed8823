"""The pipeline as Prefect flows: the graph of dvc.yaml, a task a stage; the only importer of prefect.

`python -m pipeline.orchestration.flow serve` offers both flows as deployments, without a work pool; infra/prefect.yaml
has them for one. A run works in a copy of the repository (pipeline/runs/copies.py), its stages are run by DVC
(pipeline/runs/pipeline_run.py), and its results come back as a DVC experiment of the run's name.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, cast
from uuid import UUID

import coolname.data
from prefect import Task, flow, get_run_logger, runtime, serve, task
from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State, TaskRun
from prefect.concurrency.sync import concurrency
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import TerminationSignal
from prefect.states import Completed, Failed
from prefect.types.entrypoint import EntrypointType
from pydantic import Field

from nmt.common.processes import die_with_parent
from nmt.config import InputError
from pipeline.config import graph, paths, resolution
from pipeline.orchestration import summaries
from pipeline.runs.pipeline_run import Run, unique_name
from pipeline.tracking.spool import Spool

ROOT = Path(__file__).resolve().parents[2]
"""The repository whose copies the runs work in."""
WORKER = os.getppid() if "PREFECT__FLOW_RUN_ID" in os.environ else None
"""The worker whose child this process is."""
RETRY_DELAYS = [10.0, 60.0, 300.0]
"""Seconds before what failed by no fault of the user is tried again."""
LEASE = 60.0
"""Seconds after which a GPU whose run is dead is free for another."""
PROGRESS_SECONDS = 5.0
"""Between two updates of the progress artifact."""

Row = Annotated[str | None, Field(description="A row of the paper's tables; params.yaml's where none is given.")]
Corpus = Annotated[str | None, Field(description="A file of data/catalog; params.yaml's where none is given.")]
Seed = Annotated[int | None, Field(description="Of weights, order and dropout; params.yaml's where none is given.")]
EXAMPLE = '{"training": {"updates": 200, "checkpoint_every": 10}}'
"""Overrides for a short training of any row: as many checkpoints as it averages, or more."""
Overrides = Annotated[
    dict[str, Any] | None, Field(description=f"Single values, laid over params.yaml's, for example {EXAMPLE}.")
]
Target = Annotated[str | None, Field(description="The last stage to run; all where none is given.")]
Force = Annotated[bool, Field(description="Run stages although nothing that decides them has changed.")]


@dataclass
class Done:
    """How a stage went."""

    stage: str
    how: str
    seconds: float


def run_name() -> str:
    """Return the flow run's name: the user's, or row, pair and the end of the id in place of one that Prefect drew."""
    name = str(runtime.flow_run.name)
    if not is_drawn(name):
        return name
    row = runtime.flow_run.parameters.get("row")
    # The run itself says what is wrong with params.yaml.
    with suppress(InputError):
        row = row or resolution.read_params(ROOT / paths.PARAMS).get("row")
    pair = str(runtime.flow_run.flow_name).removeprefix("wmt-")
    return unique_name(f"{row}-{pair}", str(runtime.flow_run.id))


def is_drawn(name: str) -> bool:
    """Whether Prefect drew the name, as it does where the user gives none: two words of coolname's lists."""
    words = name.split("-")
    lists = cast(dict[str, Any], coolname.data.config).values()
    return len(words) == 2 and set(words).issubset(chain(*(one["words"] for one in lists if one["type"] == "words")))


@flow(name="wmt-en-de", flow_run_name=run_name, description="Raw text to BLEU, English to German.")
def wmt_en_de(
    row: Row = None,
    overrides: Overrides = None,
    target: Target = None,
    force: Force = False,
    corpus: Corpus = None,
    seed: Seed = None,
) -> State[Any]:
    """English to German."""
    return pipeline(
        {"pair": "en-de", "row": row, "corpus": corpus, "seed": seed, "overrides": overrides}, target, force
    )


@flow(name="wmt-en-fr", flow_run_name=run_name, description="Raw text to BLEU, English to French.")
def wmt_en_fr(
    row: Row = None,
    overrides: Overrides = None,
    target: Target = None,
    force: Force = False,
    corpus: Corpus = None,
    seed: Seed = None,
) -> State[Any]:
    """English to French."""
    return pipeline(
        {"pair": "en-fr", "row": row, "corpus": corpus, "seed": seed, "overrides": overrides}, target, force
    )


FLOWS = (wmt_en_de, wmt_en_fr)


def pipeline(asked: dict[str, Any], target: str | None, force: bool) -> State[Any]:
    """Run the stages up to `target`, with the values asked for in place of params.yaml's."""
    if WORKER is not None:
        # It says nothing when it is killed.
        die_with_parent(signal.SIGTERM)
    changes = {key: value for key, value in asked.items() if value is not None}
    logger = get_run_logger()
    identity = str(runtime.flow_run.id)
    run = Run(ROOT, unique_name(str(runtime.flow_run.name), identity), identity, logger.info)
    done: list[Done] = []
    with ExitStack() as cleanup:
        cleanup.callback(run.close)
        cleanup.enter_context(outliving_the_worker())
        try:
            stages = run.begin(changes, target)
        except InputError as error:
            return Failed(name="Refused", message=str(error))
        logger.info("working in %s", run.copy)
        failed = run_stages(run, stages, force, done)
        tell_times(run, done)
        if failed is not None:
            return Failed(message=failed.message)
        tell_scores(run)
        run.save(stages if target is not None else ())
    run.remove()
    logger.info("`dvc exp show` lists the results, `dvc exp apply %s` brings them here", run.name)
    counts = {how: [each.how for each in done].count(how) for how in dict.fromkeys(each.how for each in done)}
    return Completed(message=f"{', '.join(f'{n} {how}' for how, n in counts.items())}; DVC experiment {run.name}")


@contextmanager
def outliving_the_worker() -> Iterator[None]:
    """When the worker is dead or ends this process, have the process print nothing more, and come to its end.

    The worker reads what this process prints, and does not wait for it when it ends itself. Prefect ends at the first
    line that nobody reads, and would at every further one, before it tells the server.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, TerminationSignal) or unread(1) or unread(2):
            # More than one may come, the worker's and that of its death, and would interrupt the report.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            with open(os.devnull, "w") as nothing:
                for descriptor in (1, 2):
                    os.dup2(nothing.fileno(), descriptor)
        raise


def unread(descriptor: int) -> bool:
    """Whether it is a pipe whose reader is gone. It goes a moment before the process that held it."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def run_stages(run: Run, stages: dict[str, list[str]], force: bool, done: list[Done]) -> State[Any] | None:
    """Run a task for every stage; returns the state of the one that failed."""
    states: dict[str, State[Any]] = {}
    for name, before in stages.items():
        started = time.monotonic()
        state = stage_task(run, name, force)(wait_for=[states[other] for other in before], return_state=True)
        states[name] = state
        run.tell = get_run_logger().info
        done.append(Done(name, str(state.name).lower(), time.monotonic() - started))
        if not state.is_completed():
            return state
    return None


def stage_task(run: Run, name: str, force: bool) -> Task[[], State[Any]]:
    """The task that runs one stage."""

    @task(
        name=name,
        task_run_name=name,
        retries=len(RETRY_DELAYS),
        retry_delay_seconds=RETRY_DELAYS,
        retry_condition_fn=may_pass,
        cache_policy=NO_CACHE,
    )
    def run_stage() -> State[Any]:
        run.tell = get_run_logger().info
        since = time.time()
        try:
            with outliving_the_worker(), gpus_for(name), Progress(run, name) as progress:
                how = run.repro(name, force, progress.show)
        except ChildProcessError as error:
            return Failed(message=f"{name}: {error}")
        if how is not None:
            return Completed(name=how.capitalize())
        told = run.reported(name, since)
        if not told:
            return Failed(name="Refused", message=f"{name}: DVC did not run it; why stands in the log")
        if told["state"] == "running":
            return Failed(name="Died", message=f"{name}: it was killed")
        return Failed(name=told["state"].capitalize(), message=f"{name}: {told['message']}")

    return run_stage


def may_pass(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Whether to try again: always, but where the user must mend something first."""
    return state.name != "Refused"


def gpus() -> list[str]:
    """The ids of the GPUs that this process may use, by nvidia-smi and CUDA_VISIBLE_DEVICES."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"], capture_output=True, text=True, check=True
        ).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return listed
    chosen = [part.strip() for part in visible.split(",")]
    return [
        gpu for index, gpu in enumerate(listed) if any(str(index) == c or (c and gpu.startswith(c)) for c in chosen)
    ]


@contextmanager
def gpus_for(stage: str) -> Iterator[None]:
    """Hold every GPU that the stage would use, waiting for those at work for another run."""
    names = gpus() if graph.stages(ROOT / paths.DVC_YAML)[stage].uses_gpu else []
    if not names:
        yield
        return
    with get_client(sync_client=True) as client:
        for name in names:
            client.upsert_global_concurrency_limit_by_name(name, 1)
    with concurrency(names, lease_duration=LEASE, raise_on_lease_renewal_failure=False):
        yield


class Progress:
    """Training's progress, as an artifact that changes in place."""

    def __init__(self, run: Run, stage: str) -> None:
        self.run = run
        spool = Spool(run.state_root / "tracking" / run.identity)
        self.training = summaries.Training(spool, run.copy) if stage == "train" else None
        self.artifact: UUID | None = None
        self.told: summaries.Standing | None = None
        self.next = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.next = 0.0
        self.show()

    def show(self) -> None:
        """Tell what is new."""
        if self.training is None or time.monotonic() < self.next:
            return
        self.next = time.monotonic() + PROGRESS_SECONDS
        standing = self.training.standing()
        if standing is None or standing == self.told:
            return
        self.told = standing
        with quietly():
            if self.artifact is None:
                # Its type allows for callers that are asynchronous.
                created = create_progress_artifact(standing.percent, key(self.run, "training"), standing.text)
                self.artifact = cast(UUID, created)
            else:
                update_progress_artifact(self.artifact, standing.percent, standing.text)


@contextmanager
def quietly() -> Iterator[None]:
    """What is only shown stops nothing: a server that is down is told of in the log."""
    try:
        yield
    except Exception as error:
        get_run_logger().warning("an artifact could not be written: %s", error)


def key(run: Run, what: str) -> str:
    """An artifact's key: it gathers what all runs of a row say."""
    asked = resolution.read_params(run.copy / paths.PARAMS)
    return re.sub(r"[^a-z0-9]+", "-", f"wmt-{asked['pair']}-{asked['row']}-{what}".lower()).strip("-")


def tell_times(run: Run, done: list[Done]) -> None:
    """A table of the stages."""
    rows = [{"stage": each.stage, "how": each.how, "seconds": round(each.seconds, 1)} for each in done]
    with quietly():
        create_table_artifact(rows, key(run, "stages"), f"Stages of {run.name}")


def tell_scores(run: Run) -> None:
    """BLEU beside the paper's, if the run came as far."""
    markdown = summaries.beside_the_paper(run.copy)
    if markdown is not None:
        with quietly():
            create_markdown_artifact(markdown, key(run, "bleu"), f"BLEU of {run.name}")


def main() -> int:
    """Serve the flows: a process that runs what is asked of the deployments."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.orchestration.flow", description="The pipeline as Prefect flows."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("serve", help="offer wmt-en-de and wmt-en-fr as deployments and run what is asked of them")
    parser.parse_args()
    # By the module's name: this process calls it `__main__`, that of a run does not.
    flows = importlib.import_module("pipeline.orchestration.flow").FLOWS
    offered = [each.to_deployment(each.name, entrypoint_type=EntrypointType.MODULE_PATH) for each in flows]
    serve(*cast(list[RunnerDeployment], offered))
    return 0


if __name__ == "__main__":
    sys.exit(main())
