"""Averages worked by hand, model folders that are whole, and damage told in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save_file

from nmt.config import InputError, ModelSettings, SearchSettings, TokenizerSettings
from nmt.inference.model_folder import ModelDescription, load_description, load_model, save_model
from nmt.model import Transformer
from nmt.training.checkpoint import average, update_of


def saved(path: Path, **tensors: torch.Tensor) -> Path:
    save_file(tensors, path)
    return path


def test_average_by_hand(tmp_path: Path) -> None:
    paths = [saved(tmp_path / f"{i}.safetensors", w=torch.tensor([float(i), 4.0])) for i in (1, 2, 6)]
    assert average(paths)["w"].tolist() == [3.0, 4.0]
    assert average(paths)["w"].dtype == torch.float32


def test_average_is_summed_in_float64(tmp_path: Path) -> None:
    values = [1e8, 1.0, 1.0, 1.0, -1e8]
    paths = [saved(tmp_path / f"{i}.safetensors", w=torch.tensor([v])) for i, v in enumerate(values)]
    assert average(paths)["w"].item() == pytest.approx(0.6)


def test_average_refuses_what_does_not_belong_together(tmp_path: Path) -> None:
    one = saved(tmp_path / "1.safetensors", w=torch.ones(2))
    with pytest.raises(InputError, match="no checkpoint"):
        average([])
    with pytest.raises(InputError, match="given twice"):
        average([one, one])
    for name, tensors in {"2": {"w": torch.ones(3)}, "3": {"v": torch.ones(2)}}.items():
        with pytest.raises(InputError, match=rf"{name}\.safetensors and .*1\.safetensors hold different tensors"):
            average([one, saved(tmp_path / f"{name}.safetensors", **tensors)])
    (tmp_path / "4.safetensors").write_bytes(b"no weights")
    with pytest.raises(InputError, match="cannot be read as weights"):
        average([tmp_path / "4.safetensors"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = ModelSettings(
        N=1, d_model=8, d_ff=16, h=2, d_k=4, d_v=4, P_drop=0.1, attention_dropout=0.0, relu_dropout=0.0,
        positions="sinusoidal", position_layout="interleaved", max_positions=16, projection_biases=True,
        initialisation="glorot",
    )  # fmt: skip
    description = ModelDescription(
        source="en", target="de", vocabulary=10, model=model, origin={"row": "tiny"},
        tokenizer=TokenizerSettings(tokenizer="moses", normalize_punctuation=False, aggressive_hyphens=False),
        search=SearchSettings(beam=4, alpha=0.6, max_extra=50, stop="exact"),
    )  # fmt: skip
    subwords = tmp_path / "made"
    subwords.mkdir()
    (subwords / "subwords.yaml").write_text("kind: bpe\n")
    out = tmp_path / "model"
    save_model(out, Transformer(model, 10).state_dict(), description, subwords)
    return out


def test_a_model_folder_gives_back_what_it_was_given(folder: Path) -> None:
    assert {str(path.relative_to(folder)) for path in folder.rglob("*")} == {
        "config.yaml", "model.safetensors", "subwords", "subwords/subwords.yaml",
    }  # fmt: skip
    model = load_model(folder, load_description(folder))
    assert not model.training
    assert model.embedding.table.shape == (10, 8)


def test_damaged_model_folders_say_what_is_wrong(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no model folder"):
        load_description(tmp_path / "nowhere")
    content = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump({**content, "vocabulary": 12}))
    with pytest.raises(InputError, match=r"embedding.table.*\[10, 8\].*\[12, 8\]"):
        load_model(folder, load_description(folder))
    (folder / "config.yaml").write_text(yaml.safe_dump({**content, "model": {"N": 1}}))
    with pytest.raises(InputError, match=r"config.yaml is damaged"):
        load_description(folder)


def test_weights_that_are_not_finite_are_refused(folder: Path) -> None:
    description = load_description(folder)
    weights = dict(load_model(folder, description).state_dict())
    weights["embedding.table"] = torch.full((10, 8), torch.nan)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(InputError, match="not finite"):
        load_model(folder, description)
    (folder / "model.safetensors").write_bytes(b"half")
    with pytest.raises(InputError, match="cannot be read as weights"):
        load_model(folder, description)


def test_names_tell_the_update() -> None:
    assert update_of(Path("update-00001500.safetensors")) == 1500
    with pytest.raises(InputError, match="not a checkpoint's name"):
        update_of(Path("last.safetensors"))
