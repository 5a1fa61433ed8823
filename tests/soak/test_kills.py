"""Training killed with SIGKILL ends with the undisturbed run's bits: at random moments, and at every call that writes.

The first test kills processes by the clock. The others kill forked children at the calls by which they change files:
each call of short trainings once, then random calls, attempt after attempt, until a training ends.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from kills import begin, end, every_kill, killed
from ports import free_port

from nmt.common import tensors
from nmt.training import checkpoint
from nmt.training.distributed import World, join_world
from nmt.training.history import read_history
from nmt.training.loop import train
from nmt.training.settings import Job
from pipeline.trainings.folder import write_job

ROOT = Path(__file__).resolve().parents[2]
KILLS = 50
UPDATES = 6000
MakeJob = Callable[..., dict[str, Any]]


def start(folder: Path, ranks: int) -> list[subprocess.Popen[bytes]]:
    """The processes that torchrun would start, as it would start them."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    common = {"WORLD_SIZE": str(ranks), **address, "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [sys.executable, "-m", "nmt.training.loop", str(folder)],
            cwd=ROOT,
            env={**os.environ, **common, "RANK": str(rank)},
            stderr=subprocess.DEVNULL,
        )
        for rank in range(ranks)
    ]


def reached(folder: Path) -> int:
    return max((int(record["update"]) for record in read_history(folder / "history.jsonl")), default=0)


def saved(folder: Path) -> dict[str, bytes]:
    """The weights and moments after the last update."""
    path = checkpoint.latest_resume(folder)
    assert path is not None
    assert path.name == f"update-{UPDATES:08d}"
    return {file.name: file.read_bytes() for file in path.glob("*.safetensors")}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_killed_again_and_again_on_any_number_of_processes_it_ends_with_the_same_bits(
    tmp_path: Path, tiny_job: MakeJob, precision: str
) -> None:
    """Each attempt draws its number of processes anew."""
    # It saves at every report, so that many a kill falls into the writing of a state.
    job = tiny_job(updates=UPDATES, shards=4, precision=precision, resume_minutes=0.00001)
    for name in ("undisturbed", "disturbed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "job.yaml").write_text(yaml.safe_dump(job))
    for process in start(tmp_path / "undisturbed", 1):
        assert process.wait() == 0
    folder, choice = tmp_path / "disturbed", random.Random(precision)
    halves, sizes = 0, []
    for _ in range(KILLS):
        before = reached(folder)
        sizes.append(choice.choice((1, 2, 4)))
        processes = start(folder, sizes[-1])
        while reached(folder) <= before and processes[0].poll() is None:
            time.sleep(0.01)
        time.sleep(choice.random() * 0.3)
        for process in choice.sample(processes, len(processes)):
            process.send_signal(signal.SIGKILL)
        ends = [process.wait() for process in processes]
        assert -signal.SIGKILL in ends, "it ended before it was killed"
        halves += len(list(folder.rglob("*.tmp")))
    print(f"{halves} half-written files or folders were left by {KILLS} kills on {sizes} processes")
    for process in start(folder, 2):
        assert process.wait() == 0
    assert saved(tmp_path / "undisturbed") == saved(folder)


ALONE = World(0, 1, torch.device("cpu"))


def attempt(folder: Path, job: dict[str, Any], rank: int = 0, store: str | None = None) -> None:
    """What the training stage does in one attempt; of two ranks, where they meet over a file."""
    if rank == 0:
        write_job(folder, job)
    if not (folder / "done.json").exists():
        with join_world(job["training"]["shards"], store) as world:
            assert train(Job.model_validate(job), folder, world)


def attempt_of_two(folder: Path, job: dict[str, Any], at: int) -> str | None:
    """An attempt of two ranks, of which the first is killed at its `at`-th point; which that was."""
    store = folder.parent / f"{folder.name}.store"
    store.unlink(missing_ok=True)
    children = []
    for rank in range(2):
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2"}
        children.append(begin(lambda rank=rank: attempt(folder, job, rank, f"file://{store}"), at if rank == 0 else 0))
        del os.environ["RANK"], os.environ["WORLD_SIZE"]
    (status, point), process = end(*children[0]), children[1][0]
    if point:
        # It may still wait for the first to come.
        os.kill(process, signal.SIGKILL)
    other, _ = end(*children[1])
    assert (status, other) == (0, 0) if not point else status == -signal.SIGKILL
    return point or None


def result(folder: Path, updates: int) -> dict[str, Any]:
    """All that must not depend on kills."""
    path = checkpoint.latest_resume(folder)
    assert path is not None
    assert path.name == f"update-{updates:08d}"
    assert not list(folder.rglob(".*"))
    done = json.loads((folder / "done.json").read_text())
    curve = [
        [record.get(key) for key in ("update", "loss", "gradient_norm", "valid_loss", "padding", "tokens")]
        for record in read_history(folder / "history.jsonl")
    ]
    files = [path / tensors.WEIGHTS, path / "optimizer.safetensors", *checkpoint.checkpoints(folder / "checkpoints")]
    return {
        "states": sorted(path.name for path in (folder / "resume").iterdir()),
        "files": {file.name: file.read_bytes() for file in files},
        "curve": curve,
        "done": {key: done[key] for key in ("updates", "pairs", "target_tokens", "valid_loss", "padding")},
    }


def short_job(tiny_job: MakeJob, updates: int, **training: Any) -> dict[str, Any]:
    """It saves its state after every update."""
    return tiny_job(
        updates=updates,
        validate_every=3,
        checkpoint_every=2,
        keep_checkpoints=2,
        keep_states=2,
        resume_minutes=1e-9,
        **training,
    )


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("extended", [False, True], ids=["from nothing", "from a finished training"])
def test_killed_at_every_call(tmp_path: Path, tiny_job: MakeJob, extended: bool) -> None:
    job = short_job(tiny_job, 5)
    (tmp_path / "undisturbed").mkdir()
    attempt(tmp_path / "undisturbed", job)
    expected = result(tmp_path / "undisturbed", 5)
    if extended:
        (tmp_path / "shorter").mkdir()
        attempt(tmp_path / "shorter", short_job(tiny_job, 3))

    def prepared(number: int) -> Callable[[], object]:
        folder = tmp_path / str(number)
        if extended:
            shutil.copytree(tmp_path / "shorter", folder)
        else:
            folder.mkdir()
        return lambda: attempt(folder, job)

    number = 0
    for number, _ in every_kill(prepared):
        folder = tmp_path / str(number)
        attempt(folder, job)
        outcome = result(folder, 5)
        if extended:
            # Its end at update 3 was validated, which a longer training does at its validations alone.
            assert outcome["files"] == expected["files"]
        else:
            assert outcome == expected
        shutil.rmtree(folder)
    print(f"{number} kills, one at each call")


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("ranks", "updates", "precision", "kills"),
    [(1, 3, "float32", 300), (1, 8, "float32", 400), (1, 13, "bfloat16", 400), (2, 6, "float32", 200)],
)
def test_killed_at_random_calls_until_it_ends(
    tmp_path: Path, tiny_job: MakeJob, ranks: int, updates: int, precision: str, kills: int
) -> None:
    job = short_job(tiny_job, updates, precision=precision)
    one_attempt = attempt_of_two if ranks == 2 else lambda folder, job, at: killed(lambda: attempt(folder, job), at)
    for name in ("first", "undisturbed"):
        (tmp_path / name).mkdir()
    # What a process does once only, its children need not do each time.
    attempt(tmp_path / "first", job)
    assert one_attempt(tmp_path / "undisturbed", job, 0) is None
    expected = result(tmp_path / "undisturbed", updates)
    choice = random.Random(f"{ranks} {updates}")
    done, endings, points = 0, 0, set()
    while done < kills:
        folder = tmp_path / "disturbed"
        folder.mkdir()
        before = 0
        while point := one_attempt(folder, job, choice.randrange(1, 200)):
            points.add(point)
            done += 1
            now = checkpoint.last_saved_update(folder)
            assert now >= before, "a saved state was lost"
            before = now
        assert result(folder, updates) == expected
        endings += 1
        shutil.rmtree(folder)
    print(f"{done} kills, in {endings} trainings of {updates} updates on {ranks} ranks: {sorted(points)}")
