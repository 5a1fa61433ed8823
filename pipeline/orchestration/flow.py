"""The pipeline as Prefect flows, one per pair: a task for each stage of dvc.yaml.

`python -m pipeline.orchestration.flow serve` offers the flows as deployments without a work pool; infra/prefect.yaml
has the deployments of a work pool. A run works in a copy of the repository (pipeline/runs/copies.py), DVC runs its
stages (pipeline/runs/pipeline_run.py), and its results become a DVC experiment with the name of the run.
"""

from __future__ import annotations

import argparse
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from typing import Any, cast

import coolname.data
from prefect import Flow, Task, flow, get_run_logger, runtime, serve, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.client.schemas.objects import State, TaskRun
from prefect.concurrency.sync import concurrency
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound, TerminationSignal
from prefect.states import Completed, Failed
from prefect.types.entrypoint import EntrypointType

from nmt.common.processes import die_with_parent
from nmt.config import InputError
from pipeline.common import paths
from pipeline.config import graph, resolution
from pipeline.orchestration import artifacts
from pipeline.orchestration.parameters import ROOT, Parameters
from pipeline.runs import copies
from pipeline.runs.pipeline_run import Run, unique_name

RETRY_DELAYS = [10.0, 60.0, 300.0]
"""Seconds before each retry of a failed stage."""
LEASE = 120.0
"""Seconds after which the slots of a killed run are free again: more than its processes get to save their state."""
NVIDIA_SMI_TIMEOUT = 30.0
"""Seconds."""

PAIRS = {"wmt-en-de": "en-de", "wmt-en-fr": "en-fr", "parse-en": "en-tree"}
"""The flows by name, with their pairs."""


def run_name() -> str:
    """Return the flow run's name.

    It is the user's, or row, pair and the end of the id if the name is one of Prefect's random names.
    """
    name = str(runtime.flow_run.name)
    if not is_random_name(name):
        return name
    row = runtime.flow_run.parameters.get("row")
    # The run itself reports an invalid params.yaml.
    with suppress(InputError):
        row = row or resolution.read_params(ROOT / paths.PARAMS).get("row")
    pair = PAIRS[str(runtime.flow_run.flow_name)]
    return unique_name(f"{row}-{pair}", str(runtime.flow_run.id))


def is_random_name(name: str) -> bool:
    """Return whether Prefect drew the name, as it does where the user gives none: two words of coolname's lists."""
    words = name.split("-")
    lists = cast(dict[str, Any], coolname.data.config).values()
    return len(words) == 2 and set(words).issubset(chain(*(one["words"] for one in lists if one["type"] == "words")))


def make_flow(name: str, description: str) -> Flow[..., State[Any]]:
    """Return the flow of this name, which runs the pipeline of its pair."""

    asked = Parameters(PAIRS[name])

    def pipeline(
        row: str = asked.row,
        corpus: str = asked.corpus,
        seed: int = asked.seed,
        overrides: dict[str, Any] = {},  # noqa: B006 - Prefect's form shows it
        target: str = asked.stages[-1],
        force: bool = False,
    ) -> State[Any]:
        changes = {"pair": PAIRS[name], "row": row, "corpus": corpus, "seed": seed, "overrides": overrides}
        return run_pipeline(changes, None if target == asked.stages[-1] else target, force)

    pipeline.__doc__ = asked.docstring(description)
    pipeline.__annotations__ |= asked.types
    # The name in this module, by which deployments find the flow.
    pipeline.__name__ = pipeline.__qualname__ = name.replace("-", "_")
    return flow(name=name, flow_run_name=run_name, description=description)(pipeline)


FLOWS = wmt_en_de, wmt_en_fr, parse_en = (
    make_flow("wmt-en-de", "Raw text to BLEU, English to German."),
    make_flow("wmt-en-fr", "Raw text to BLEU, English to French."),
    make_flow("parse-en", "Treebank to F1, English to constituency trees."),
)


def run_pipeline(changes: Mapping[str, Any], target: str | None, force: bool) -> State[Any]:
    """Run the stages up to `target` with `changes` of params.yaml's values; returns the final state of the flow run."""
    if "PREFECT__FLOW_RUN_ID" in os.environ:
        # A killed worker sends no signal to the processes that it started.
        die_with_parent(signal.SIGTERM)
    logger = get_run_logger()
    identity = str(runtime.flow_run.id)
    run = Run(ROOT, unique_name(str(runtime.flow_run.name), identity), identity, logger.info)
    rows: list[dict[str, Any]] = []
    with ExitStack() as cleanup:
        cleanup.enter_context(copies.held(run.folder, "owner"))
        cleanup.callback(run.close)
        cleanup.enter_context(output_discarded_without_reader())
        try:
            stages = run.begin(changes, target)
        except InputError as error:
            return Failed(name="Refused", message=str(error))
        logger.info("working in %s", run.copy)
        failed = run_stages(run, stages, force, rows)
        artifacts.publish_times(run, rows)
        if failed is not None:
            artifacts.publish_links(run)
            # Prefect's pages show the name at the top, and the message under "Details".
            return Failed(name=f"{rows[-1]['stage']} {rows[-1]['how']}".capitalize(), message=failed.message)
        artifacts.publish_scores(run)
        run.save(stages if target is not None else ())
        artifacts.publish_links(run)
    run.remove()
    logger.info("`dvc exp show` lists the results, `dvc exp apply %s` brings them here", run.name)
    counts = ", ".join(f"{count} {how}" for how, count in Counter(row["how"] for row in rows).items())
    return Completed(message=f"{counts}; DVC experiment {run.name}")


@contextmanager
def output_discarded_without_reader() -> Iterator[None]:
    """Discard further output once the worker terminates this process or is dead.

    The worker reads this process's output through pipes. Without a reader every line that Prefect prints raises
    BrokenPipeError, and the process would end before it reports the run's state to the server.
    """
    try:
        yield
    except BaseException as error:
        poll = select.poll()
        for descriptor in (1, 2):
            poll.register(descriptor, 0)
        if isinstance(error, TerminationSignal) or any(event & select.POLLERR for _, event in poll.poll(0)):
            # There may be a second SIGTERM, for the worker's death, which would interrupt the report.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            with open(os.devnull, "w") as nothing:
                for descriptor in (1, 2):
                    os.dup2(nothing.fileno(), descriptor)
        raise


def run_stages(run: Run, stages: dict[str, list[str]], force: bool, rows: list[dict[str, Any]]) -> State[Any] | None:
    """Run a task for every stage, add a row of each to `rows`, and return the state of the first that fails."""
    states: dict[str, State[Any]] = {}
    for name, before in stages.items():
        started = time.monotonic()
        state = stage_task(run, name, force)(wait_for=[states[other] for other in before], return_state=True)
        states[name] = state
        run.log = get_run_logger().info
        rows.append({"stage": name, "how": str(state.name).lower(), "seconds": round(time.monotonic() - started, 1)})
        if not state.is_completed():
            return state
    return None


def stage_task(run: Run, name: str, force: bool) -> Task[[], State[Any]]:
    """Return the task that runs one stage."""

    @task(
        name=name,
        task_run_name=name,
        retries=len(RETRY_DELAYS),
        retry_delay_seconds=RETRY_DELAYS,
        retry_condition_fn=is_worth_a_retry,
        cache_policy=NO_CACHE,
    )
    def run_stage() -> State[Any]:
        run.log = get_run_logger().info
        since = time.time()
        try:
            with (
                slots_for(run, name),
                ended_after_failure(run),
                output_discarded_without_reader(),
                artifacts.progress(run, name) as tick,
            ):
                how = run.repro(name, force, tick)
        except ChildProcessError as error:
            return Failed(message=f"{name}: {error}")
        if how is not None:
            return Completed(name=how.capitalize())
        status = run.reported(name, since)
        if not status:
            return Failed(name="Refused", message=f"{name}: DVC did not run it; the log has the reason")
        if status["state"] == "running":
            return Failed(name="Died", message=f"{name}: it was killed")
        if status["state"] == "done":
            return Failed(name="Not saved", message=f"{name}: DVC could not keep its results; the log has the reason")
        return Failed(name=status["state"].capitalize(), message=f"{name}: {status['message']}")

    return run_stage


@contextmanager
def ended_after_failure(run: Run) -> Iterator[None]:
    """End the processes of a stage that is cancelled or lost, before its device is another run's."""
    try:
        yield
    except BaseException:
        run.close()
        raise


def is_worth_a_retry(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Return whether a retry may succeed: not where the user must change something first."""
    return state.name != "Refused"


def gpu_ids() -> list[str]:
    """Return the ids of the GPUs that this process may use, by nvidia-smi and CUDA_VISIBLE_DEVICES."""
    command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=NVIDIA_SMI_TIMEOUT)
    except (OSError, subprocess.SubprocessError):
        return []
    listed = result.stdout.split()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return listed
    chosen = [part.strip() for part in visible.split(",")]
    return [
        gpu for index, gpu in enumerate(listed) if any(str(index) == c or (c and gpu.startswith(c)) for c in chosen)
    ]


@contextmanager
def slots_for(run: Run, stage: str) -> Iterator[None]:
    """Hold a slot of each device that the stage computes on: the GPUs that it may use, or else this machine's CPU.

    Waits while other runs hold them. A device has one slot, because training uses all of it; the user can change that
    with `prefect gcl update NAME --limit 2`. Stages without `meta: gpu` in dvc.yaml need no slot.
    """
    if not graph.stages(run.copy / paths.DVC_YAML)[stage].uses_gpu:
        yield
        return
    names = gpu_ids() or [f"cpu-{socket.gethostname()}"]
    with get_client(sync_client=True) as client:
        for name in names:
            try:
                client.read_global_concurrency_limit_by_name(name)
            except ObjectNotFound:
                with suppress(ObjectAlreadyExists):
                    client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=1))
    get_run_logger().info("%s: requesting a slot of %s", stage, ", ".join(names))
    with concurrency(names, lease_duration=LEASE, raise_on_lease_renewal_failure=False):
        yield


def main() -> int:
    """Serve the flows: run in this process what is requested of the deployments."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.orchestration.flow", description="The pipeline as Prefect flows."
    )
    parser.add_argument("command", choices=["serve"], help="offer the flows as deployments and run what is requested")
    parser.parse_args()
    # Imported by its name: in this process the module is `__main__`, but not in the process of a run.
    flows = importlib.import_module("pipeline.orchestration.flow").FLOWS
    deployments = [each.to_deployment(each.name, entrypoint_type=EntrypointType.MODULE_PATH) for each in flows]
    serve(*cast(list[RunnerDeployment], deployments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
