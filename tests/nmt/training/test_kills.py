"""A kill at any call that changes a file loses nothing: what was whole before it, or what replaces that, is found."""

import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest
import torch
from kills import every_kill
from text_lines import names
from trainings import CONDITIONS

from nmt.common import tensors
from nmt.common.files import writing
from nmt.model import Transformer
from nmt.training import checkpoint
from nmt.training.state import TrainState, load_state, save_state
from tests.nmt.conftest import Training


def write(path: Path, content: str, kind: str) -> None:
    with writing(path) as temporary:
        if kind == "file":
            temporary.write_text(content)
        else:
            (temporary / "inner").mkdir(parents=True)
            for name in ("one", "inner/two"):
                (temporary / name).write_text(content)


def read(path: Path) -> set[str]:
    """The contents of the files that `write` wrote, one if they are whole; none where nothing is there."""
    files = [path / "one", path / "inner/two"] if path.is_dir() else [path]
    return {file.read_text() for file in files} if path.exists() else set()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_killed_write_leaves_the_old_or_the_new(tmp_path: Path, kind: str) -> None:
    def prepared(number: int) -> Callable[[], object]:
        write(tmp_path / str(number) / "path", "old", kind)
        return lambda: write(tmp_path / str(number) / "path", "new", kind)

    seen = set()
    for number, point in every_kill(prepared):
        path = tmp_path / str(number) / "path"
        found = read(path)
        if not found:
            # Between the two renames: whatever else happens, the next writer puts the old one back.
            assert (kind, point) == ("folder", "before replace")
            with pytest.raises(KeyboardInterrupt), writing(path):
                raise KeyboardInterrupt
            found = read(path)
        assert found in ({"old"}, {"new"})
        seen |= found
        write(path, "newer", kind)
        assert read(path) == {"newer"}
        assert names(path.parent) == ["path"]
    assert seen == {"old", "new"}


@torch.no_grad()
def fill(model: Transformer, optimizer: torch.optim.Optimizer, value: int) -> None:
    """Have all values of both tell the same number."""
    for parameter in model.parameters():
        parameter.fill_(value)
        for moment in optimizer.state[parameter].values():
            moment.fill_(value)


def values(tensors: Iterable[torch.Tensor]) -> set[float]:
    return {value for tensor in tensors for value in tensor.flatten().tolist()}


@pytest.mark.parametrize("same", [False, True], ids=["next update", "same update again"])
def test_a_killed_save_leaves_a_whole_state(tmp_path: Path, training: Training, same: bool) -> None:
    model, optimizer = training
    saved = TrainState(updates=9, validate_every=9, conditions=CONDITIONS, processes=1)

    def save(folder: Path, update: int) -> None:
        fill(model, optimizer, update)
        made = saved.model_copy(update={"update": update, "padded": update})
        save_state(folder, made, model, optimizer, keeps=lambda earlier: earlier == 3)

    next_update = 5 if same else 6
    for update in (3, 4, 5):
        save(tmp_path / "made", update)

    def prepared(number: int) -> Callable[[], object]:
        folder = shutil.copytree(tmp_path / "made", tmp_path / str(number))
        # What an earlier kill may have left there.
        shutil.copytree(folder / "resume/update-00000005", folder / "resume/.update-00000004.there.9.tmp")
        return lambda: save(folder, next_update)

    seen = set()
    for number, point in every_kill(prepared, 3):
        folder = tmp_path / str(number)
        path = checkpoint.latest_resume(folder)
        assert path is not None, point
        state = load_state(path, model, optimizer)
        assert state.padded == state.update == checkpoint.update_of(path)
        moments = [moment for of_parameter in optimizer.state.values() for moment in of_parameter.values()]
        assert values([*model.parameters(), *moments]) == {state.update}, point
        seen.add(state.update)
        save(folder, next_update)
        assert names(folder / "resume") == ["update-00000003", f"update-{next_update:08d}"]
        shutil.rmtree(folder)
    assert seen == {5, next_update}


def test_a_killed_checkpoint_leaves_those_before_until_it_is_whole(tmp_path: Path, training: Training) -> None:
    model, optimizer = training

    def save(folder: Path, update: int) -> None:
        fill(model, optimizer, update)
        checkpoint.save_checkpoint(folder, update, model.state_dict(), keep=2)

    for update in (1, 2):
        save(tmp_path / "made", update)

    def prepared(number: int) -> Callable[[], object]:
        return partial(save, shutil.copytree(tmp_path / "made", tmp_path / str(number)), 3)

    seen = set()
    for number, _ in every_kill(prepared):
        folder = tmp_path / str(number)
        kept = [checkpoint.update_of(path) for path in checkpoint.checkpoints(folder)]
        seen.add(tuple(kept))
        for path in checkpoint.checkpoints(folder):
            assert values(tensors.load_tensors(path).values()) == {checkpoint.update_of(path)}
        save(folder, 3)
        assert names(folder) == ["update-00000002.safetensors", "update-00000003.safetensors"]
    assert seen == {(1, 2), (1, 2, 3)}
