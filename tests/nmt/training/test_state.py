"""What a training saves and resumes from: every field comes back from disk, and a damaged state is refused."""

from __future__ import annotations

import json
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
from nmt.training.state import Interval, ResumeConditions, TrainState, load_state, read_state, save_state

MakeJob = Callable[..., dict[str, Any]]
ALONE = World(0, 1, torch.device("cpu"))
CONDITIONS = ResumeConditions(processes=2, threads=1, micro_tokens=64, device="cpu", compiled=False, torch="2.13.0")

counts = st.integers(0, 2**60)
measures = st.floats(0, allow_nan=False, allow_infinity=False)
losses = st.floats(0, allow_nan=False)
sums = st.builds(LengthSums, counts, counts, counts, counts, counts, counts)
states = st.builds(
    TrainState,
    update=st.integers(0, 10**8),
    sums=sums,
    padded=measures,
    interval=st.builds(
        Interval, loss=measures, nll=measures, norm=measures, padded=measures, updates=counts, sums=sums,
        skipped=counts, seconds=measures,
    ),
    best_loss=losses,
    valid_loss=losses,
    validations_since_best=counts,
    last_finite=counts,
    seconds=measures,
    device_seconds=st.dictionaries(st.text(max_size=20), measures, max_size=3),
    resumes=counts,
    conditions=st.builds(
        ResumeConditions, processes=counts, threads=counts, micro_tokens=counts, device=st.text(max_size=20),
        compiled=st.booleans(), torch=st.text(max_size=20),
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


def test_only_the_main_rank_continues_the_sums_of_all_ranks() -> None:
    interval = Interval.empty().model_copy(update={"loss": 3.0, "nll": 2.0, "norm": 1.0, "padded": 9.0})
    state = TrainState.initial(CONDITIONS).model_copy(update={"interval": interval})
    totals = [Measurements(World(rank, 2, ALONE.device), state).totals.tolist() for rank in range(2)]
    assert totals == [[3.0, 2.0, 1.0, 9.0], [0.0] * 4]


def test_time_lost_to_a_kill_counts_for_the_devices_that_saved_the_state() -> None:
    gpu = CONDITIONS.model_copy(update={"device": "NVIDIA H100"})
    times = {"NVIDIA H100": 100.0, "cpu": 7.0}
    state = TrainState.initial(gpu).model_copy(update={"seconds": 60.0, "device_seconds": times})
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
    content = json.loads(TrainState.initial(CONDITIONS).model_dump_json())
    (tmp_path / "state.json").write_text(json.dumps(content))
    assert read_state(tmp_path) == TrainState.initial(CONDITIONS)
    (tmp_path / "state.json").write_text(json.dumps(changed(content, key, value)))
    with pytest.raises(InputError) as caught:
        read_state(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / 'state.json'} cannot be resumed from ({problem}): remove {tmp_path} to start this training again"
    )


def test_a_state_cut_short_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"update": 7, "su')
    with pytest.raises(InputError, match=r"cannot be resumed from \(Invalid JSON"):
        read_state(tmp_path)
