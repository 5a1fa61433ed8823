"""What a training saves and resumes from: every field comes back from disk, and a damaged state is refused."""

from __future__ import annotations

import errno
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.config import InputError, ModelSettings
from nmt.flops import LengthSums
from nmt.model import Transformer
from nmt.training.distributed import World
from nmt.training.measurements import Measurements
from nmt.training.state import Interval, ResumeConditions, TrainState, load_state, print_resume, read_state, save_state

MakeJob = Callable[..., dict[str, Any]]
ALONE = World(0, 1, torch.device("cpu"))
CONDITIONS = ResumeConditions(
    device="cpu", processor="EPYC", threads=1, compiled=False, deterministic=True, torch="2.13.0"
)

counts = st.integers(0, 2**60)
measures = st.floats(0, allow_nan=False, allow_infinity=False)
losses = st.floats(0, allow_nan=False)
sums = st.builds(LengthSums, counts, counts, counts, counts, counts, counts)
states = st.builds(
    TrainState,
    update=st.integers(0, 10**8),
    sums=sums,
    padded=counts,
    interval=st.builds(
        Interval, loss=measures, nll=measures, norm=measures, updates=counts, sums=sums, skipped=counts,
        seconds=measures,
    ),
    best_loss=losses,
    valid_loss=losses,
    validations_since_best=counts,
    last_finite=counts,
    seconds=measures,
    device_seconds=st.dictionaries(st.text(max_size=20), measures, max_size=3),
    resumes=counts,
    processes=st.just(1),
    conditions=st.builds(
        ResumeConditions, device=st.text(max_size=20), processor=st.text(max_size=20), threads=counts,
        compiled=st.booleans(), packed=st.booleans(), deterministic=st.booleans(), torch=st.text(max_size=20),
    ),
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("states")


@pytest.fixture(scope="module")
def training() -> tuple[Transformer, torch.optim.Optimizer]:
    model = Transformer(
        ModelSettings(
            N=1, d_model=2, d_ff=2, h=1, d_k=1, d_v=1, P_drop=0.0, attention_dropout=0.0, relu_dropout=0.0,
            positions="sinusoidal", position_layout="interleaved", max_positions=4, projection_biases=False,
            initialisation="glorot",
        ),
        4,
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return model, optimizer


@settings(max_examples=25)
@given(state=states)
def test_a_state_comes_back_as_it_was_saved(
    folder: Path, training: tuple[Transformer, torch.optim.Optimizer], state: TrainState
) -> None:
    path = folder / f"update-{state.update:08d}"
    if path.exists():
        (path / "state.json").write_text(state.model_dump_json())
    else:
        save_state(folder, state, *training)
    assert load_state(path, *training) == state
    assert json.loads((path / "state.json").read_text())["update"] == state.update


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_moments_that_were_loaded_hold_no_file(
    tmp_path: Path, training: tuple[Transformer, torch.optim.Optimizer]
) -> None:
    """On NFS its folder could not be removed."""
    save_state(tmp_path, TrainState.initial(CONDITIONS, 1), *training)
    load_state(tmp_path / "update-00000000", *training)
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_a_folder_that_cannot_be_removed_yet_stays_for_the_next_save(
    tmp_path: Path, training: tuple[Transformer, torch.optim.Optimizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    state, number = TrainState.initial(CONDITIONS, 1), errno.ENOTEMPTY

    def refused(path: Path) -> None:
        raise OSError(number, "of the test", str(path))

    save_state(tmp_path, state, *training)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", refused)
        save_state(tmp_path, state.model_copy(update={"update": 1}), *training)
        number = errno.EACCES
        with pytest.raises(PermissionError):
            save_state(tmp_path, state.model_copy(update={"update": 2}), *training)
    assert len(list(tmp_path.iterdir())) == 3
    save_state(tmp_path, state.model_copy(update={"update": 3}), *training)
    assert [path.name for path in tmp_path.iterdir()] == ["update-00000003"]


@settings(max_examples=50)
@given(state=states)
def test_measurements_continue_a_state(state: TrainState) -> None:
    """Restored and saved again at once, only the clock goes on."""
    again = Measurements(ALONE, state).state(state.conditions)
    assert again.seconds >= state.seconds
    assert again.interval.seconds == pytest.approx(state.interval.seconds, rel=1e-6, abs=60)
    assert again.device_seconds.keys() == {*state.device_seconds, "cpu"}
    clock = {"seconds": 0.0, "device_seconds": {}}
    intervals = [one.interval.model_copy(update={"seconds": 0.0}) for one in (state, again)]
    assert state.model_copy(update={**clock, "interval": intervals[0]}) == again.model_copy(
        update={**clock, "interval": intervals[1]}
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "processor, threads, torch and compilation are the same"),
        ({"threads": 2}, "threads was 1 and is 2"),
        ({"packed": True}, "packed was False and is True"),
        (
            {"processor": "Xeon", "torch": "2.14.0"},
            "processor was 'EPYC' and is 'Xeon'; torch was '2.13.0' and is '2.14.0'",
        ),
    ],
)
def test_a_resume_says_what_is_different_now(
    capsys: pytest.CaptureFixture[str], changes: dict[str, Any], reason: str
) -> None:
    """The number of processes is not among it."""
    print_resume(TrainState.initial(CONDITIONS, processes=4), CONDITIONS.model_copy(update=changes), 9)
    assert capsys.readouterr().out == (
        f"resuming after update 0 of 9; the weights will {'not ' if changes else ''}be bit-identical to an undisturbed "
        f"run's: {reason}\n"
    )


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_gpu_is_exact_with_deterministic_kernels_alone(
    capsys: pytest.CaptureFixture[str], deterministic: bool
) -> None:
    gpu = {"device": "NVIDIA H100", "processor": "", "threads": 0, "deterministic": deterministic}
    conditions = CONDITIONS.model_copy(update=gpu)
    print_resume(TrainState.initial(conditions, 1), conditions, 9)
    output = capsys.readouterr().out
    assert ("will be bit-identical" in output) is deterministic
    assert ("without training.deterministic GPUs add in no fixed order" in output) is not deterministic


def test_time_lost_to_a_kill_counts_for_the_devices_that_saved_the_state() -> None:
    gpu = CONDITIONS.model_copy(update={"device": "NVIDIA H100"})
    times = {"NVIDIA H100": 100.0, "cpu": 7.0}
    state = TrainState.initial(gpu, processes=2).model_copy(update={"seconds": 60.0, "device_seconds": times})
    later = state.with_lost_time(recorded=65.0)
    assert (later.seconds, later.device_seconds) == (65.0, {"NVIDIA H100": 110.0, "cpu": 7.0})
    assert state.with_lost_time(recorded=50.0) == state


def changed(content: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Set a dotted key; None removes it."""
    *parts, last = key.split(".")
    inner = content
    for part in parts:
        inner = inner[part]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return content


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("validations_since_best", None, "key `validations_since_best` is missing"),
        ("interval.norm", None, "key `interval.norm` is missing"),
        ("sums.pairs", None, "key `sums.pairs` is missing"),
        ("conditions.torch", None, "key `conditions.torch` is missing"),
        ("interval_tokens", 3, "key `interval_tokens` is unknown"),
        ("interval.tokens", 3, "key `interval.tokens` is unknown"),
        ("sums.words", 3, "key `sums.words` is unknown"),
        ("update", "7", "key `update`: Input should be a valid integer"),
    ],
)
def test_unknown_missing_and_wrong_keys_are_refused(tmp_path: Path, key: str, value: Any, problem: str) -> None:
    content = json.loads(TrainState.initial(CONDITIONS, 1).model_dump_json())
    (tmp_path / "state.json").write_text(json.dumps(content))
    assert read_state(tmp_path) == TrainState.initial(CONDITIONS, 1)
    (tmp_path / "state.json").write_text(json.dumps(changed(content, key, value)))
    with pytest.raises(InputError) as caught:
        read_state(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / 'state.json'} cannot be resumed from ({problem}): remove {tmp_path} to start this training again"
    )


def test_a_state_from_before_updates_were_packed(tmp_path: Path) -> None:
    content = json.loads(TrainState.initial(CONDITIONS, 1).model_dump_json())
    (tmp_path / "state.json").write_text(json.dumps(changed(content, "conditions.packed", None)))
    assert read_state(tmp_path).conditions == CONDITIONS


def test_a_state_cut_short_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"update": 7, "su')
    with pytest.raises(InputError, match=r"cannot be resumed from \(Invalid JSON"):
        read_state(tmp_path)
