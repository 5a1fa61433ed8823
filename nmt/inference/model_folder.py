"""Model folders: weights, config.yaml and subwords, all that translation needs."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
import yaml
from torch import Tensor

from nmt.common.files import read_yaml, writing
from nmt.common.tensors import WEIGHTS, load_tensors, save_tensors
from nmt.errors import InputError, explained
from nmt.inference.settings import SearchSettings
from nmt.model import Transformer
from nmt.model_settings import ModelSettings
from nmt.schema import Settings
from nmt.text.settings import TokenizerSettings


class ModelDescription(Settings):
    """`config.yaml` of a model folder."""

    source: str
    target: str
    vocabulary: int
    target_vocabulary: int | None = None
    """Rows of the target's tables if they are not the source's."""
    tokenizer: TokenizerSettings
    model: ModelSettings
    search: SearchSettings
    origin: dict[str, str | int]
    """The run that made the model, for people."""


def save_model(folder: Path, weights: Mapping[str, Tensor], description: ModelDescription, subwords: Path) -> None:
    """Write a model folder: weights, config.yaml and a copy of the folder `subwords`."""
    with writing(folder, folder=True) as temporary:
        save_tensors(temporary / WEIGHTS, weights)
        config = yaml.safe_dump(description.model_dump(exclude_defaults=True), sort_keys=False, allow_unicode=True)
        (temporary / "config.yaml").write_text(config, encoding="utf-8")
        shutil.copytree(subwords, temporary / "subwords")


def to_dtype(weights: Mapping[str, Tensor], dtype: str) -> dict[str, Tensor]:
    """Return the weights as numbers of another type; raise InputError for integers, which need scales."""
    if "int" in dtype:
        raise InputError(f"--dtype is {dtype}, which is for CTranslate2 alone: give float32, bfloat16 or float16")
    return {name: tensor.to(getattr(torch, dtype)) for name, tensor in weights.items()}


def convert(folder: Path, out: Path, dtype: str) -> None:
    """Write the model folder `out`: that of `folder` with weights of another type, for less space on disk."""
    description = load_description(folder)
    weights = to_dtype(load_model(folder, description).state_dict(), dtype)
    save_model(out, weights, description, folder / "subwords")


def load_description(folder: Path) -> ModelDescription:
    """Return config.yaml of a model folder; raise InputError if it is missing or wrong."""
    path = folder / "config.yaml"
    try:
        content = read_yaml(path)
    except OSError as error:
        raise InputError(f"{folder} is no model folder: {path} cannot be read ({error.strerror})") from error
    with explained(f"{path} is damaged or of another version: ", ""):
        return ModelDescription.model_validate(content if isinstance(content, dict) else {})


def load(folder: str | Path) -> Transformer:
    """Return a folder's Transformer, in float32, on the CPU, in evaluation mode; raise InputError for a damaged one."""
    return load_model(Path(folder), load_description(Path(folder)))


def load_model(folder: Path, description: ModelDescription) -> Transformer:
    """Return the model in float32 and in evaluation mode.

    Raises InputError if weights are damaged, not finite or of another shape.
    """
    weights = {name: tensor.float() for name, tensor in load_tensors(folder / WEIGHTS).items()}
    with torch.device("meta"):
        model = Transformer(description.model, description.vocabulary, description.target_vocabulary)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        problem = " ".join(str(error).split()[:40])
        raise InputError(f"{folder / WEIGHTS} and config.yaml are of different models: {problem}") from error
    for name, tensor in weights.items():
        if not torch.isfinite(tensor).all():
            raise InputError(f"{folder / WEIGHTS}: tensor `{name}` holds values that are not finite: train it again")
    return model.eval()
