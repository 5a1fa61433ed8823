"""Flows beside each other and disturbed: two rows at once, cancelled, with a process that dies, on one GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from clones import SHRUNKEN, Clone
from orchestra import Orchestra, until

pytestmark = pytest.mark.timeout(900)

LONG = {"training": {"updates": 500, "checkpoint_every": 250, "validate_every": 250}}


@pytest.fixture(scope="module")
def orchestra(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orchestra]:
    clone = Clone(tmp_path_factory.mktemp("clone"))
    clone.params(overrides=SHRUNKEN)
    orchestra = Orchestra(clone, tmp_path_factory.mktemp("home"))
    with orchestra.serving():
        yield orchestra


@pytest.fixture(scope="module")
def first(orchestra: Orchestra) -> str:
    return orchestra.completed()


def test_again_every_stage_is_cached_and_two_rows_run_at_once(orchestra: Orchestra, first: str) -> None:
    """While a user edits params.yaml."""
    seeds = [orchestra.deploy(row="sample", seed=seed) for seed in (1, 2, 3)]
    until(lambda: all(orchestra.run(seed)["state_type"] == "RUNNING" for seed in seeds[1:]), "two runs at once")
    until(lambda: all("working in" in orchestra.messages(seed) for seed in seeds), "their copies")
    path = orchestra.clone.folder / "params.yaml"
    before = path.read_text()
    path.write_text("row: [")
    try:
        for identity in seeds:
            assert orchestra.ended(identity)["state_type"] == "COMPLETED", orchestra.messages(identity)
    finally:
        path.write_text(before)
    assert set(orchestra.how(seeds[0]).values()) == {"Cached"}
    for identity in seeds[1:]:
        how = orchestra.how(identity)
        assert (how["tokenize"], how["train"], how["score"]) == ("Cached", "Ran", "Ran")
    states = list((orchestra.clone.folder / "work/train").glob("*/done.json"))
    assert len(states) == 3


def test_cancelled_in_training_and_gone_on_with(orchestra: Orchestra) -> None:
    before = set((orchestra.clone.folder / "work/train").glob("*"))
    identity = orchestra.deploy(overrides=LONG)
    state = until(lambda: orchestra.trained(30, before), "training to begin")
    orchestra.cancel(identity)
    assert orchestra.ended(identity)["state_type"] == "CANCELLED"
    until(lambda: not orchestra.at_work("pipeline.runs.supervisor"), "the end of the run's processes", 60)
    assert orchestra.at_work("nmt.training.trainer") == orchestra.at_work("-m pipeline train") == []
    assert (state / "interrupted").exists()
    identity = orchestra.deploy(overrides=LONG, target="train")
    assert orchestra.ended(identity)["state_type"] == "COMPLETED", orchestra.messages(identity)
    assert json.loads((state / "done.json").read_text())["resumes"] == 1


def test_a_stage_that_dies_is_tried_again(orchestra: Orchestra) -> None:
    before = set((orchestra.clone.folder / "work/train").glob("*"))
    identity = orchestra.deploy(seed=9, overrides=LONG, target="train")
    state = until(lambda: orchestra.trained(30, before), "training to begin")
    for pid in orchestra.at_work("nmt.training.trainer", str(state)):
        subprocess.run(["kill", "-KILL", str(pid)], check=True)
    assert orchestra.ended(identity)["state_type"] == "COMPLETED", orchestra.messages(identity)
    assert orchestra.stages(identity)["train"]["run_count"] == 2


def test_a_run_whose_supervisor_dies_is_tried_again_in_the_same_copy(orchestra: Orchestra) -> None:
    before = set((orchestra.clone.folder / "work/train").glob("*"))
    identity = orchestra.deploy(seed=10, overrides=LONG, target="train")
    until(lambda: orchestra.trained(30, before), "training to begin")
    (killed,) = orchestra.at_work("pipeline.runs.supervisor")
    (copy,) = (orchestra.clone.folder / "work/runs").glob(f"*{identity[-8:]}/repository")
    made = copy.stat().st_ino
    os.kill(killed, signal.SIGKILL)
    until(lambda: orchestra.at_work("pipeline.runs.supervisor") not in ([killed], []), "another supervisor")
    assert copy.stat().st_ino == made
    assert orchestra.ended(identity)["state_type"] == "COMPLETED", orchestra.messages(identity)
    assert orchestra.stages(identity)["train"]["run_count"] >= 2


def test_a_gpu_is_used_by_one_run_at_a_time(orchestra: Orchestra) -> None:
    orchestra.gpus.write_text("GPU-4f2a\n")
    try:
        runs = [orchestra.deploy(seed=seed, target="train") for seed in (11, 12)]
        for identity in runs:
            assert orchestra.ended(identity)["state_type"] == "COMPLETED", orchestra.messages(identity)
    finally:
        orchestra.gpus.unlink()
    limit = orchestra.call("v2/concurrency_limits/GPU-4f2a")
    assert (limit["limit"], limit["active_slots"]) == (1, 0)
    spans = []
    for identity in runs:
        (began,) = [line for line in orchestra.lines(identity) if line["message"] == "Running stage 'train':"]
        spans.append((time_of(began["timestamp"]), time_of(orchestra.stages(identity)["train"]["end_time"])))
    (_, first_ended), (second_began, _) = sorted(spans)
    # A task ends a moment after it has let go of the GPU.
    assert second_began > first_ended - timedelta(seconds=2)


def time_of(stamp: str) -> datetime:
    return datetime.fromisoformat(stamp)
