"""Flows that everything befalls end with the weights of an undisturbed `dvc repro`; runs at once share a GPU."""

import contextlib
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import psutil
import pytest
import torch
from agents import until
from clones import SHRUNKEN, Clone
from orchestra import Orchestra

from nmt.common import tensors

pytestmark = pytest.mark.timeout(3600)

TRAINING = {**SHRUNKEN["training"], "updates": 2000, "checkpoint_every": 500, "validate_every": 500}
STEP = 100  # updates between two disturbances
DOWN = 60.0  # seconds that MLflow is stopped
PROCESSES = {
    "dvc": "-m dvc repro",
    "stage": "-m pipeline train",
    "launcher": "pipeline.trainings.launch",
    "trainer": "nmt.training.loop",
}


def weights(clone: Clone) -> dict[str, torch.Tensor]:
    return tensors.load_tensors(clone.folder / "models/checkpoints/last.safetensors")


@pytest.fixture
def undisturbed(tmp_path: Path) -> Clone:
    clone = Clone(tmp_path / "undisturbed")
    clone.params(overrides={**SHRUNKEN, "training": TRAINING})
    environment = {**clone.environment(), "OMP_NUM_THREADS": "1"}
    clone.environment = lambda: environment
    assert "train" in clone.repro()
    return clone


class Disturbed(Orchestra):
    """`make serve` with runs that are disturbed every STEP updates."""

    reached = STEP

    def on_disk(self, identity: str) -> tuple[str, str]:
        """The type and the message of a run's state, from what the server left on disk."""
        with contextlib.closing(sqlite3.connect(self.clone.folder / "work/prefect/prefect.db")) as connection:
            joined = "flow_run_state state JOIN flow_run run ON state_id = state.id"
            query = f"SELECT state_type, message FROM {joined} WHERE replace(run.id, '-', '') = ?"
            return connection.execute(query, [identity.replace("-", "")]).fetchone()

    def wait_until_gone(self) -> None:
        until(lambda: not any(self.at_work(name) for name in PROCESSES.values()), "the end of the run's processes")

    def wait_for_training(self) -> None:
        until(lambda: self.trained(self.reached) and self.at_work(PROCESSES["trainer"]), "training to go on")
        self.reached += STEP

    def cancel_a_run(self) -> None:
        cancelled = self.deploy()
        self.wait_for_training()
        self.cancel(cancelled)
        assert self.ended(cancelled)["state_type"] == "CANCELLED"
        self.wait_until_gone()

    def kill_each_process_of_a_run_and_then_its_flow(self) -> None:
        tried = self.deploy()
        for attempts, words in enumerate(PROCESSES.values(), start=1):
            self.wait_for_training()
            for pid in self.at_work(words):
                os.kill(pid, signal.SIGKILL)
            until(lambda least=attempts: self.stages(tried)["train"]["run_count"] > least, f"a retry after {words}")
            assert len(self.at_work(PROCESSES["dvc"])) <= 1, f"two attempts at once after the death of {words}"
        self.wait_for_training()
        for pid in self.at_work("engine"):
            if psutil.Process(pid).environ().get("PREFECT__FLOW_RUN_ID") == tried:
                os.kill(pid, signal.SIGKILL)
        assert self.ended(tried)["state_type"] == "CRASHED"
        self.wait_until_gone()

    def halt_mlflow(self) -> None:
        halted = [psutil.Process(pid) for pid in self.at_work("mlflow")]
        for process in halted:
            process.suspend()
        time.sleep(DOWN)
        for process in halted:
            process.resume()


def test_cancelled_killed_and_cut_off(tmp_path: Path, undisturbed: Clone) -> None:
    clone = Clone(tmp_path / "disturbed")
    clone.params(overrides={**SHRUNKEN, "training": TRAINING})
    flow = clone.folder / "pipeline/flows/flow.py"
    flow.write_text(flow.read_text().replace("RETRY_DELAYS = [10.0, 60.0, 300.0]", "RETRY_DELAYS = [0.5] * 9"))
    orchestra = Disturbed(clone, tmp_path / "home")
    process = orchestra.start()
    try:
        orchestra.cancel_a_run()
        orchestra.kill_each_process_of_a_run_and_then_its_flow()
        left = orchestra.deploy()
        orchestra.wait_for_training()
        assert orchestra.ends(process, psutil.Process(orchestra.worker()).kill) == 1
        # The flow reported it: its process was not killed.
        assert orchestra.on_disk(left) == ("CRASHED", "Execution was aborted by a termination signal.")

        process = orchestra.start()
        last = orchestra.deploy()
        orchestra.wait_for_training()
        orchestra.halt_mlflow()
        run = orchestra.ended(last, 1200)
        assert run["state_type"] == "COMPLETED", orchestra.messages(last)
        limits = orchestra.call("v2/concurrency_limits/filter", {})
        assert limits
        assert not any(limit["active_slots"] for limit in limits), limits
        assert not [path for path in (clone.folder / "work/copies").iterdir() if path.is_dir()]
        assert clone.run("dvc", "exp", "apply", run["name"]).returncode == 0
        assert orchestra.ends(process, lambda: process.send_signal(signal.SIGINT)) == 0
    finally:
        orchestra.kill(process)
    resumed = weights(clone)
    expected = weights(undisturbed)
    assert all(torch.equal(resumed[name], expected[name]) for name in expected)


@pytest.fixture
def orchestra(tmp_path: Path) -> Iterator[Orchestra]:
    """With a catalog that Git does not track."""
    clone = Clone(tmp_path / "clone")
    clone.params(overrides=SHRUNKEN)
    (clone.folder / "data/catalog/mine.yaml").write_text("extends: sample\ndescription: Mine.\n")
    orchestra = Orchestra(clone, tmp_path / "home")
    with orchestra.serving():
        yield orchestra


def test_runs_beside_each_other_use_a_gpu_in_turn_and_restore_what_is_cached(orchestra: Orchestra) -> None:
    """While a user edits params.yaml."""
    first = orchestra.deploy()
    assert orchestra.ended(first)["state_type"] == "COMPLETED", orchestra.messages(first)
    orchestra.gpus.write_text("GPU-4f2a, NVIDIA H100, 81559 MiB, 9.0\n")
    runs = [orchestra.deploy(row="sample", seed=seed) for seed in (1, 2, 3)]
    until(lambda: all("working in" in orchestra.messages(run) for run in runs), "their copies")
    path = orchestra.clone.folder / "params.yaml"
    before = path.read_text()
    path.write_text("row: [")
    try:
        for run in runs:
            assert orchestra.ended(run)["state_type"] == "COMPLETED", orchestra.messages(run)
    finally:
        path.write_text(before)
    assert set(orchestra.how(runs[0]).values()) == {"Cached"}
    for run in runs[1:]:
        how = orchestra.how(run)
        assert (how["tokenize"], how["train"], how["score"]) == ("Cached", "Ran", "Ran")
    limit = orchestra.call("v2/concurrency_limits/GPU-4f2a")
    assert (limit["limit"], limit["active_slots"]) == (1, 0)
    spans = []
    for run in runs[1:]:
        (began,) = [line for line in orchestra.lines(run) if line["message"] == "Running stage 'train':"]
        ended = orchestra.stages(run)["train"]["end_time"]
        spans.append((datetime.fromisoformat(began["timestamp"]), datetime.fromisoformat(ended)))
    (_, first_ended), (second_began, _) = sorted(spans)
    # A task ends a moment after it has let go of the GPU.
    assert second_began > first_ended - timedelta(seconds=2)


def test_what_the_user_must_mend_is_not_tried_again_and_a_run_may_end_before_the_last_stage(
    orchestra: Orchestra,
) -> None:
    mistaken = orchestra.deploy(overrides={"model": {"P_dropped": 0.1}})
    identity = orchestra.deploy(corpus="mine", target="download")
    parsing = orchestra.deploy(pair="en-tree", row="parse-sample", corpus="sample-trees", target="resolve")
    run = orchestra.ended(mistaken)
    assert (run["state_type"], run["state_name"]) == ("FAILED", "Resolve refused")
    assert "did you mean `P_drop`?" in run["state"]["message"]
    assert {name: (task["state_name"], task["run_count"]) for name, task in orchestra.stages(mistaken).items()} == {
        "resolve": ("Refused", 1)
    }
    for flow_run, stages in ((identity, ["resolve", "download"]), (parsing, ["resolve"])):
        run = orchestra.ended(flow_run)
        assert run["state_type"] == "COMPLETED", orchestra.messages(flow_run)
        assert list(orchestra.how(flow_run)) == stages
        assert run["name"] in orchestra.clone.run("git", "for-each-ref", "--format=%(refname)", "refs/exps").stdout


def test_killed_servers_leave_nothing_at_work(tmp_path: Path) -> None:
    clone = Clone(tmp_path / "clone")
    clone.params(overrides={**SHRUNKEN, "training": TRAINING})
    orchestra = Orchestra(clone, tmp_path / "home")
    process = orchestra.start()
    try:
        orchestra.deploy(target="train")
        state = until(lambda: orchestra.trained(5), "training to begin")
        assert orchestra.ends(process, process.kill) == -signal.SIGKILL
        assert (state / "interrupted").exists()
    finally:
        orchestra.kill(process)
