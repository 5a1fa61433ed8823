"""The stages after training, killed at calls that change files: what is there is whole, and made again it is the same.

A training whose disk is full ends with a sentence and is resumed. Its kills are in tests/nmt/training/test_kills.py.
"""

import contextlib
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from data_stages import contents, full_disk
from kills import every_kill
from tiny_run import copied, run_stages, training
from trainings import stop_after

from nmt.common.processes import Interrupted
from nmt.training import checkpoint
from pipeline.__main__ import outcome
from pipeline.config import graph, paths

MADE = "models", "results"
STEP = 7  # of the points at which a stage can be killed, for the test's time


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A run in the present folder."""
    with contextlib.chdir(copied(tmp_path_factory, tmp_path_factory.mktemp("trained") / "run")):
        yield


@pytest.mark.parametrize("stage", ["average", "decode", "score"])
def test_a_killed_stage_leaves_nothing_half_written(trained: None, stage: str) -> None:
    undisturbed, outs = contents(*MADE), list(map(Path, graph.stages()[stage].outs))

    def removed() -> None:
        """As DVC does before a stage."""
        for out in outs:
            shutil.rmtree(out, ignore_errors=True) if out.is_dir() else out.unlink(missing_ok=True)

    def prepared(_: int) -> partial[None]:
        removed()
        return partial(run_stages, stage)

    points = set()
    for _, point in every_kill(prepared, STEP):
        points.add(point)
        for path, content in contents(*MADE).items():
            assert any(part.startswith(".") for part in Path(path).parts) or content == undisturbed[path], point
        removed()
        run_stages(stage)
        assert contents(*MADE) == undisturbed, point
    assert len(points) > 2, points


def test_a_training_on_a_full_disk_is_a_sentence_and_resumed(trained: None) -> None:
    undisturbed, (state,) = contents(*MADE), Path("work/train").iterdir()
    shutil.rmtree(state)
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 10)
        with pytest.raises(Interrupted):
            training()
    largest = (state / "resume/update-00000010/model.safetensors").stat().st_size  # The moments are twice as large.
    with full_disk(largest + 4096), pytest.raises(OSError, match="File too large") as caught:
        training()
    _, sentence, status = outcome(caught.value)
    assert (sentence.endswith("make room and run again: nothing half-written is left"), status) == (True, 1), sentence
    assert checkpoint.last_saved_update(state) == 10, "what was complete"
    assert not list(state.rglob(".*"))
    training()
    for path in (path for path in undisturbed if Path(path).parent == paths.CHECKPOINTS or path == str(paths.CHAIN)):
        assert Path(path).read_bytes() == undisturbed[path], path
