"""What a training saves and resumes from: every field comes back from disk, and a damaged state is refused."""

import errno
import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from refusals import check_refusal
from trainings import ALONE, CONDITIONS

from nmt.flops import LengthSums
from nmt.training import checkpoint
from nmt.training.measurements import Measurements
from nmt.training.state import TrainState, load_state, read_state, save_state
from tests.nmt.conftest import Training

INITIAL = TrainState(updates=30, validate_every=10, conditions=CONDITIONS, processes=1)

VALUES = {
    int: 2**60, float: 0.1, str: 'é \n"\\\u2028', bool: True, dict[str, float]: {"cpu": 0.3, "": 1e300},
    LengthSums: LengthSums(1, 2, 3, 4, 5, 6),
}  # fmt: skip


def filled(kind: Any) -> Any:
    """An object of a schema with no field at its default."""
    types = {name: field.annotation for name, field in kind.model_fields.items()}
    return kind(**{name: VALUES[type_] if type_ in VALUES else filled(type_) for name, type_ in types.items()})


FILLED = filled(TrainState)


def test_conditions_matter_unless_both_are_portable() -> None:
    portable = CONDITIONS.model_copy(update={"portable": True})
    assert portable.differences(portable.model_copy(update={"threads": 2})) == []
    assert portable.differences(CONDITIONS) == ["portable was True and is False"]


def test_a_state_comes_back(tmp_path: Path, training: Training) -> None:
    save_state(tmp_path, FILLED, *training)
    path = tmp_path / f"resume/update-{FILLED.update:08d}"
    assert load_state(path, *training) == FILLED
    assert json.loads((path / "state.json").read_text())["update"] == FILLED.update


def test_moments_that_were_loaded_hold_no_file(tmp_path: Path, training: Training) -> None:
    """On NFS its folder could not be removed."""
    save_state(tmp_path, INITIAL, *training)
    load_state(tmp_path / "resume/update-00000000", *training)
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_a_folder_in_use_goes_a_save_later(tmp_path: Path, training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one on NFS with an open file."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", Mock(side_effect=OSError(errno.ENOTEMPTY, "of the test")))
        for update in (0, 1):
            save_state(tmp_path, INITIAL.model_copy(update={"update": update}), *training)
    assert len(checkpoint.states(tmp_path)) == 2
    save_state(tmp_path, INITIAL.model_copy(update={"update": 3}), *training)
    assert [path.name for path in (tmp_path / "resume").iterdir()] == ["update-00000003"]


def test_measurements_continue_a_state() -> None:
    """Restored and saved again at once, only the clock goes on."""
    state, again = FILLED, Measurements(ALONE, FILLED.model_copy(deep=True)).saved()
    assert again.seconds >= state.seconds
    assert again.interval.seconds == pytest.approx(state.interval.seconds, rel=1e-6, abs=60)
    clock = {name: getattr(state, name) for name in ("seconds", "device_seconds", "interval")}
    assert again.model_copy(update=clock) == state
    interval = again.interval.model_copy(update={"seconds": state.interval.seconds})
    assert interval == state.interval


def test_an_attempt_counts_time_lost_to_a_kill_for_the_devices_that_saved_the_state() -> None:
    gpu = CONDITIONS.model_copy(update={"device": "NVIDIA H100"})
    times = {"NVIDIA H100": 100.0, "cpu": 7.0}
    saved = {"seconds": 60.0, "device_seconds": times, "conditions": gpu, "processes": 2, "update": 9}
    state = INITIAL.model_copy(update=saved)
    later = state.resumed(65.0, INITIAL)
    assert (later.seconds, later.device_seconds) == (65.0, {"NVIDIA H100": 110.0, "cpu": 7.0})
    assert (later.update, later.resumes, later.processes, later.conditions) == (9, 1, 1, CONDITIONS)
    assert state.resumed(50.0, INITIAL).device_seconds == times


@pytest.mark.parametrize(
    ("text", "changed", "problem"),
    [
        ('"pairs":0', '"pairs":0,"words":3', "interval.sums.words is 3; "),
        ('"update":0', '"update":"0"', "update is '0'; input should be a valid integer"),
        ("cpu", "\xff", "Invalid JSON: invalid unicode"),
    ],
)
def test_unknown_keys_and_wrong_values_are_refused(tmp_path: Path, text: str, changed: str, problem: str) -> None:
    check_refusal("", read_state, tmp_path)
    before, matched, after = INITIAL.model_dump_json().rpartition(text)
    assert matched
    (tmp_path / "state.json").write_text(before + changed + after, encoding="latin-1")
    assert f"{tmp_path / 'state.json'} cannot be resumed from ({problem}" in check_refusal("", read_state, tmp_path)


def test_further_conditions_of_other_code_are_left_out(tmp_path: Path) -> None:
    before, matched, after = INITIAL.model_dump_json().rpartition('"threads":')
    assert matched
    (tmp_path / "state.json").write_text(f'{before}"products":"torch",{matched}{after}', encoding="utf-8")
    assert read_state(tmp_path) == INITIAL
