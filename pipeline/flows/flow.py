"""The pipeline as Prefect flows, of the paper's pairs and of any: a task for each stage of dvc.yaml.

infra/prefect.yaml has their deployments. A run works in a copy of the repository (pipeline/flows/copies.py), DVC runs
its stages there, and its results become a DVC experiment with the name of the run.
"""

import json
import logging
import os
import re
import signal
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from prefect import Flow, flow, get_run_logger, runtime, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.client.schemas.objects import State
from prefect.concurrency.sync import concurrency
from prefect.exceptions import FailedRun, ObjectAlreadyExists, ObjectNotFound, TerminationSignal
from prefect.states import Completed, Failed
from pydantic import Field

from nmt.common.processes import die_with_parent
from nmt.errors import InputError
from nmt.task import task_in, task_of
from pipeline.config import catalogs, graph, machine, paths, resolution, rows
from pipeline.config.paths import read_json, status_file
from pipeline.config.wording import summary
from pipeline.flows import copies
from pipeline.tracking import server

ROOT = Path(__file__).resolve().parents[2]  # the repository whose copies the runs work in
RETRY_DELAYS = [10.0, 60.0, 300.0]  # seconds before each retry of a failed stage
LEASE = 120.0
"""Seconds after which the slots of a killed run are free again: more than its processes get to save their state."""
EXAMPLE = '{"training": {"updates": 200, "checkpoint_every": 10}}'
"""Overrides for a short training of any row: it writes at least as many checkpoints as the row averages."""


def of_params() -> str:
    """Return the overrides of params.yaml, into which those of a run are merged, as the form shows them."""
    with chdir(ROOT), suppress(InputError):  # The run itself reports an invalid params.yaml.
        return json.dumps(resolution.read_params().get("overrides") or {}, default=str)
    return "{}"


DESCRIPTION = f"""

Args:
    pair: The languages, from and into: a pair of the corpus.
    row: The row of the paper's tables, or a smaller model: `wmt rows` describes them.
    corpus: The catalog of data/catalog: `wmt catalog list` describes them.
    seed: The seed of weights, order of sentences and dropout.
    overrides: Single values over those of the row and of params.yaml, for example {EXAMPLE}.
        Merged into those of params.yaml, which were {of_params()} when this was deployed.
    target: The last stage to run.
    force: Run stages although nothing that they depend on has changed.
"""
"""End of a flow's docstring: Prefect's form shows what it says of the parameters."""


def form(pair: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the types of a flow's parameters, from which Prefect makes the form and checks values, and the defaults.

    The form offers the rows, corpora and stages that are here when the flows are deployed, as `make serve` does at its
    start. Defaults are the values of params.yaml where they are choices of the pair, else those of the embedded sample.
    """
    given: dict[str, Any] = {}
    corpora: dict[str, list[str]] = {}
    with chdir(ROOT):
        for name in catalogs.names():
            with suppress(InputError):  # Without those that cannot be read.
                corpora[name] = [known_pair for known_pair in catalogs.load(name).pairs if pair in (None, known_pair)]
        with suppress(InputError):  # The run itself reports an invalid params.yaml.
            given = resolution.read_params()
        fitting = [name for name, row in rows.table().rows.items() if not pair or task_of(row.pair) is task_of(pair)]
        pairs = [pair] if pair else sorted({known_pair for some in corpora.values() for known_pair in some})
        having = [name for name, some in corpora.items() if some] or ["sample"]
        choices = {"pair": pairs, "row": fitting, "corpus": having, "target": list(graph.stages())}
    types = {key: cast(Any, Literal)[tuple(names)] for key, names in choices.items()}
    types["seed"] = Annotated[int, Field(ge=0)]
    types["overrides"] = cast(Any, dict)[cast(Any, Literal)[tuple(resolution.OVERRIDABLE)], dict[str, Any]]
    defaults = {"seed": given["seed"] if isinstance(given.get("seed"), int) else 1, "target": choices["target"][-1]}
    for key in ("pair", "row", "corpus"):
        samples = (name for name in choices[key] if "sample" in name)
        defaults[key] = given[key] if given.get(key) in choices[key] else next(samples, choices[key][0])
    return types, defaults


def make_flow(name: str, pair: str | None, about: str) -> Flow[..., State[Any]]:
    types, defaults = form(pair)

    def run_name() -> str:
        # Also the name of its DVC experiment. The first characters of an id are a time.
        given = {**defaults, **runtime.flow_run.parameters}
        settings = resolution.in_words(dict(rows.flat(given.get("overrides", {}))))
        words = "-".join((given["row"], given["pair"], *settings))
        # A folder's name has a limit, in bytes.
        return re.sub(r"[^\w-]", "_", f"{words[:100]}-{runtime.flow_run.id[-8:]}", flags=re.ASCII)

    def pipeline(
        pair: str = defaults["pair"],
        row: str = defaults["row"],
        corpus: str = defaults["corpus"],
        seed: int = defaults["seed"],
        overrides: dict[str, Any] = {},  # noqa: B006 - Prefect's form shows it
        target: str = defaults["target"],
        force: bool = False,
    ) -> State[Any]:
        changes = {"pair": pair, "row": row, "corpus": corpus, "seed": seed, "overrides": overrides}
        return run_pipeline(changes, target, force)

    # Prefect makes the form from these, and deployments find the flow by its name in this module.
    pipeline.__doc__ = about + DESCRIPTION
    pipeline.__annotations__ |= types
    pipeline.__name__ = pipeline.__qualname__ = name.replace("-", "_")
    return flow(name=name, flow_run_name=run_name, description=about)(pipeline)


FLOWS = wmt, wmt_en_de, wmt_en_fr, parse_en = (
    make_flow("wmt", None, "Raw text to scores, of any pair that a catalog has."),
    make_flow("wmt-en-de", "en-de", "Raw text to BLEU, English to German."),
    make_flow("wmt-en-fr", "en-fr", "Raw text to BLEU, English to French."),
    make_flow("parse-en", "en-tree", "Treebank to F1, English to constituency trees."),
)


def run_pipeline(changes: Mapping[str, Any], target: str, force: bool) -> State[Any]:
    """Run the stages up to `target` with `changes` of params.yaml's values; returns the final state of the flow run."""
    if "PREFECT__FLOW_RUN_ID" in os.environ:
        end_with_worker()
        # Prefect raises a failed run's state as an error of its engine. Its message has been logged.
        logging.getLogger("prefect.flow_runs").addFilter(
            lambda record: not (record.exc_info and record.exc_info[0] is FailedRun)
        )
    logger, name = get_run_logger(), str(runtime.flow_run.name)
    try:
        with copies.made(ROOT, name, changes) as copy:
            logger.info("working in %s", copy)
            declared = graph.stages(copy / paths.DVC_YAML)
            stages = graph.upstream(target, declared)
            states: list[State[Any]] = []
            for stage in stages:
                # Waiting for a device is no time of the task.
                with slots_for(declared[stage]):
                    task = run_stage.with_options(name=stage)
                    states.append(task(copy, stage, force, wait_for=states[-1:], return_state=True))
                if not states[-1].is_completed():
                    # Prefect's pages show the name at the top, and the message under "Details".
                    return Failed(name=f"{stage} {states[-1].name}".capitalize(), message=states[-1].message)
            copies.save(copy, stages if len(stages) < len(declared) else (), logger.info)
            publish_scores(copy, changes)
    except InputError as error:
        return Failed(name="Refused", message=str(error))
    logger.info("`dvc exp show` lists the results, `dvc exp apply %s` brings them here", name)
    counts = ", ".join(f"{count} {how}" for how, count in Counter(str(state.name).lower() for state in states).items())
    return Completed(message=f"{counts}; DVC experiment {name}")


def end_with_worker() -> None:
    """Terminate this process when the worker is killed, and report the run's state nonetheless.

    This process prints into pipes that the worker reads. Once the worker is dead, a printed line would end the process
    before it reports to the server.
    """

    def terminate(*_: object) -> None:
        # What ends the worker may send SIGTERM, too, and the kernel repeats SIGUSR1 where the worker has several
        # threads: either would interrupt the report.
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
        with open(os.devnull, "w") as nothing:
            for descriptor in (1, 2):
                os.dup2(nothing.fileno(), descriptor)
        raise TerminationSignal(signal=signal.SIGTERM)  # As Prefect does at SIGTERM.

    # Not SIGTERM: Prefect takes that for a cancellation only while it has its own handler.
    signal.signal(signal.SIGUSR1, terminate)
    die_with_parent(signal.SIGUSR1)


@task(
    task_run_name="{name}",
    retries=len(RETRY_DELAYS),
    retry_delay_seconds=RETRY_DELAYS,
    # Not where the user must change something first.
    retry_condition_fn=lambda _task, _run, state: state.name != "Refused",
    cache_policy=NO_CACHE,
)
def run_stage(copy: Path, name: str, force: bool) -> State[Any]:
    """Run one stage if it has changed, or restore it from DVC's cache."""
    reported = copy / status_file(name)
    reported.unlink(missing_ok=True)
    command = [*copies.DVC, "repro", "--single-item", *(["--force"] if force else []), name]
    code = copies.run(copy, command, get_run_logger().info)
    # Exit statuses do not survive DVC. A stage that DVC restored has written no status file.
    status = read_json(reported) if reported.exists() else {}
    if code == 0:
        return Completed(name="Ran" if status else "Cached")
    state = status.get("state", "failed")
    # DVC did not run it, it was killed, or DVC could not keep its results.
    how = {"running": "died", "done": "not saved"}.get(state, state)
    return Failed(name=how.capitalize(), message=f"{name}: {status.get('message') or 'the log has the reason'}")


@contextmanager
def slots_for(declared: graph.Stage) -> Iterator[None]:
    """Hold a slot of each device that the stage computes on: the GPUs that it may use, or else this machine's CPU.

    Waits while other runs hold them. A device has one slot, because training uses all of it; the user can change that
    with `prefect gcl update NAME --limit 2`. Stages without `meta: gpu` in dvc.yaml need no slot.
    """
    if not declared.meta.get("gpu"):
        yield
        return
    devices = [gpu.id for gpu in machine.gpus()] or [f"cpu-{socket.gethostname()}"]
    with get_client(sync_client=True) as client:
        for device in devices:
            try:
                client.read_global_concurrency_limit_by_name(device)
            except ObjectNotFound:
                with suppress(ObjectAlreadyExists):
                    client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=device, limit=1))
    get_run_logger().info("%s: requesting a slot of %s", declared.name, ", ".join(devices))
    with concurrency(devices, lease_duration=LEASE, raise_on_lease_renewal_failure=False):
        yield


def publish_scores(copy: Path, changes: Mapping[str, Any]) -> None:
    """Write the scores as an artifact of the run. Runs of the same pair and row are its versions."""
    if (copy / paths.SCORES).exists():
        scores = read_json(copy / paths.SCORES)
        key = re.sub(r"[^a-z0-9]+", "-", f"wmt-{changes['pair']}-{changes['row']}-{task_in(scores).key}".lower())
        where = f"Scores of {copy.name}; its results: `dvc exp apply {copy.name}`"
        links = f"All runs side by side, and this one's report among its artifacts: {server.link(changes['pair'])}"
        create_markdown_artifact(f"{summary(scores)}\n\n{links}", key, where)
