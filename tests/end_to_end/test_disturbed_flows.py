"""Flows beside each other and disturbed, on one Prefect server and worker: the tests go on with each other's runs.

Trainings have no end here, so that no disturbance comes too late; those of tests/soak end, with the right bits.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from clones import SHRUNKEN, Clone
from orchestra import Orchestra, Terminal, listening, until, with_suppressed

from pipeline.orchestration.services import SHORT

pytestmark = pytest.mark.timeout(900)

ENDLESS = {**SHRUNKEN["training"], "updates": 100_000, "checkpoint_every": 50_000, "validate_every": 50_000}
TRAINER = "nmt.training.trainer"


Services = tuple[Orchestra, "subprocess.Popen[bytes]", Terminal]


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """The services, started in a terminal, which the last test closes."""
    clone = Clone(tmp_path_factory.mktemp("clone"))
    clone.params(overrides={**SHRUNKEN, "training": ENDLESS})
    module = clone.folder / "pipeline/orchestration/flow.py"
    module.write_text(module.read_text().replace("RETRY_DELAYS = [10.0, 60.0, 300.0]", "RETRY_DELAYS = [0.5] * 3"))
    orchestra = Orchestra(clone, tmp_path_factory.mktemp("home"))
    terminal = Terminal(orchestra.log)
    # The runs restore the stages before training from DVC's cache.
    command, quiet = ["dvc", "repro", "binarize"], subprocess.DEVNULL
    with subprocess.Popen(command, cwd=clone.folder, env=clone.environment(), stdout=quiet) as corpus:
        process = orchestra.start(terminal)
        try:
            assert corpus.wait() == 0
            yield orchestra, process, terminal
        finally:
            terminal.close()
            orchestra.kill(process)


@pytest.fixture(scope="module")
def orchestra(services: Services) -> Orchestra:
    return services[0]


@pytest.fixture(scope="module")
def runs(orchestra: Orchestra) -> list[str]:
    """Two runs, the one that trains first."""
    both = [orchestra.deploy(target="train", seed=seed) for seed in (1, 2)]
    until(lambda: all("train: requesting a slot of cpu-" in orchestra.messages(run) for run in both), "both trainings")
    until(lambda: any("Running stage 'train'" in orchestra.messages(run) for run in both), "a training")
    return sorted(both, key=lambda run: "Running stage 'train'" not in orchestra.messages(run))


@pytest.fixture(scope="module")
def state(orchestra: Orchestra, runs: list[str]) -> Path:
    """The folder of the training that begins first."""
    return until(lambda: orchestra.trained(5), "updates of the first training")


def test_two_runs_at_once_train_one_after_the_other(orchestra: Orchestra, runs: list[str], state: Path) -> None:
    assert [orchestra.run(run)["state_type"] for run in runs] == ["RUNNING", "RUNNING"]
    limits = orchestra.call("v2/concurrency_limits/filter", {})
    (limit,) = (limit for limit in limits if limit["name"].startswith("cpu-"))
    assert (limit["limit"], limit["active_slots"]) == (1, 1)
    assert list(state.parent.iterdir()) == [state]
    assert "Running stage 'train'" not in orchestra.messages(runs[1])


def test_a_cancelled_run_saves_its_training_and_the_next_one_trains(
    orchestra: Orchestra, runs: list[str], state: Path
) -> None:
    orchestra.cancel(runs[0])
    assert orchestra.ended(runs[0])["state_type"] == "CANCELLED"
    until((state / "interrupted").exists, "the end of the cancelled training")
    until(lambda: not orchestra.at_work(TRAINER, str(state)), "the end of its processes")
    until(lambda: orchestra.trained(5, {state}), "the other training")


def test_a_stage_whose_process_is_killed_is_tried_again(orchestra: Orchestra, runs: list[str]) -> None:
    killed = orchestra.at_work(TRAINER)
    for pid in killed:
        with_suppressed(os.kill, pid, signal.SIGKILL)
    until(lambda: orchestra.stages(runs[1])["train"]["run_count"] == 2, "a second attempt")
    until(lambda: set(orchestra.at_work(TRAINER)) - set(killed), "its training")
    assert orchestra.run(runs[1])["state_type"] == "RUNNING"


def notify_of_failures(orchestra: Orchestra, url: str) -> None:
    """What `wmt notify` does, in this process: starting one takes longer."""
    # Every worker of pytest collects this module, and importing Prefect takes a second.
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    from pipeline.orchestration.notifications import notify

    login = orchestra.login()
    with temporary_settings({setting: login[setting.name] for setting in (PREFECT_API_URL, PREFECT_API_AUTH_STRING)}):
        notify(url)


def test_a_run_whose_worker_is_killed_saves_its_training_and_reports(
    orchestra: Orchestra, runs: list[str], state: Path
) -> None:
    (other,) = [path for path in state.parent.iterdir() if path != state]
    since = time.time()
    history = other / "history.jsonl"
    with listening() as (url, posted):
        notify_of_failures(orchestra, url)
        until(lambda: history.exists() and history.stat().st_mtime > since, "updates of the second attempt")
        (worker,) = orchestra.at_work("-m prefect worker start")
        until(lambda: time.time() - psutil.Process(worker).create_time() > SHORT + 1, "a worker that lived for a while")
        os.kill(worker, signal.SIGKILL)
        run = orchestra.ended(runs[1])
        assert run["state_type"] == "CRASHED"
        assert "ended without a report" not in run["state"]["message"]
        until(lambda: not orchestra.at_work("pipeline.runs.supervisor"), "the end of the run's processes")
        assert not [psutil.Process(pid).as_dict(["ppid", "cmdline", "status"]) for pid in orchestra.at_work(TRAINER)]
        assert (other / "interrupted").exists()
        until(lambda: orchestra.at_work("-m prefect worker start"), "another worker")
        until(lambda: posted, "the notification")
    (sent,) = posted
    assert sent.startswith(f"{run['name']}: {run['state']['name']}\n{run['state']['message']}\n")


def test_a_terminal_that_closes_gives_runs_the_time_to_save_and_to_report(services: Services) -> None:
    orchestra, process, terminal = services
    before = set((orchestra.clone.folder / "work/train").glob("*"))
    identity = orchestra.deploy(target="train", seed=3)
    state = until(lambda: orchestra.trained(5, before), "training to begin")
    assert orchestra.ends(process, terminal.close) == 0
    kind, message = orchestra.on_disk(identity)
    # The flow reported it: its process was not killed.
    assert (kind, "ended without a report" in message) == ("CRASHED", False)
    assert (state / "interrupted").exists()
