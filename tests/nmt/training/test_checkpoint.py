"""Averages worked by hand, and damage told in one sentence."""

from pathlib import Path

import torch
from refusals import check_refusal
from safetensors.torch import save_file

from nmt.training.checkpoint import average, update_of


def test_average_by_hand_is_summed_in_float64(tmp_path: Path) -> None:
    values = [(1.0, 1e8), (2.0, 1.5), (6.0, -1e8)]
    for i, pair in enumerate(values):
        save_file({"w": torch.tensor(pair)}, tmp_path / f"{i}.safetensors")
    averaged = average([*tmp_path.iterdir()])["w"]
    assert (averaged.tolist(), averaged.dtype) == ([3.0, 0.5], torch.float32)


def test_average_refuses_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "4.safetensors").write_bytes(b"no weights")
    check_refusal("cannot be read as weights", average, [tmp_path / "4.safetensors"])


def test_names_tell_the_update() -> None:
    assert [update_of(Path(name)) for name in ("update-00001500", "update-00001500.safetensors")] == [1500, 1500]
