"""Model folders: weights, config.yaml and subwords, all that translating needs. Written whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
import yaml
from pydantic import ValidationError
from torch import Tensor

from nmt.common.files import writing
from nmt.common.tensors import WEIGHTS, load_tensors, save_tensors, shape_text
from nmt.config import InputError, ModelSettings, SearchSettings, Settings, TokenizerSettings
from nmt.model import Transformer


class ModelDescription(Settings):
    """`config.yaml` of a model folder: all that translating needs besides weights and subwords."""

    source: str
    target: str
    vocabulary: int
    target_vocabulary: int | None = None
    """Rows of the target's tables if they are not the source's."""
    tokenizer: TokenizerSettings
    model: ModelSettings
    search: SearchSettings
    origin: dict[str, str | int]
    """Which run made it, for people."""


def save_model(folder: Path, weights: Mapping[str, Tensor], description: ModelDescription, subwords: Path) -> None:
    """Write a model folder that is complete in itself: weights, config.yaml and the subword folder."""
    with writing(folder) as temporary:
        temporary.mkdir()
        save_tensors(temporary / WEIGHTS, weights)
        config = yaml.safe_dump(description.model_dump(exclude_defaults=True), sort_keys=False, allow_unicode=True)
        (temporary / "config.yaml").write_text(config, encoding="utf-8")
        shutil.copytree(subwords, temporary / "subwords")


def load_description(folder: Path) -> ModelDescription:
    """A model folder's config.yaml; raises InputError where there is none or it is wrong."""
    path = folder / "config.yaml"
    try:
        return ModelDescription.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"{folder} is no model folder: {path} cannot be read ({error.strerror})") from error
    except (ValidationError, yaml.YAMLError) as error:
        raise InputError(f"{path} is damaged or of another version: {error}") from error


def load_model(folder: Path, description: ModelDescription) -> Transformer:
    """The model of a folder, for evaluation; raises InputError where weights are damaged, of another shape or NaN."""
    weights = load_tensors(folder / WEIGHTS)
    vocabularies = description.vocabulary, description.target_vocabulary
    with torch.device("meta"):
        empty = Transformer(description.model, *vocabularies)
        wanted = {name: tensor.shape for name, tensor in empty.state_dict().items()}
    for name in sorted(wanted.keys() | weights.keys()):
        found = weights[name].shape if name in weights else None
        if found != wanted.get(name):
            raise InputError(
                f"{folder / WEIGHTS}: tensor `{name}` has shape {shape_text(found)}, but config.yaml asks for "
                f"{shape_text(wanted.get(name))}: the two files are of different models"
            )
    for name, tensor in weights.items():
        if not torch.isfinite(tensor).all():
            raise InputError(f"{folder / WEIGHTS}: tensor `{name}` holds values that are not finite: train it again")
    model = Transformer(description.model, *vocabularies)
    model.load_state_dict(weights)
    return model.eval()
