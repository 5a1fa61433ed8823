"""The model that a training starts from: found, identified by its weights, compared with the run's settings."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from nmt.common.files import read_yaml, sha256_of
from nmt.config import FREE, InputError, ModelSettings, StartSettings, SubwordSettings, TokenizerSettings
from pipeline.config.paths import AVERAGE, LAST
from pipeline.config.settings import Configuration

WEIGHTS = "model.safetensors"  # As in nmt.common.tensors, which imports torch.


def identified(configuration: Configuration) -> Configuration:
    """Return the configuration with the sha256 of the parent's weights and with the parent's subwords.

    Without training.start_from it is unchanged. Raises InputError where the parent is missing, is a model that the run
    replaces, or does not fit; the message has both values of all that differs.
    """
    start = configuration.training.start_from
    if start is None:
        return configuration
    folder = found(start)
    if folder.resolve() in (AVERAGE.resolve(), LAST.resolve()):
        raise InputError(
            f"training.start_from is {start.folder}, which this run replaces: copy it, as with `cp -r {folder} "
            "data/local/parent`, and start from data/local/parent"
        )
    try:
        description, learned = read_yaml(folder / "config.yaml"), read_yaml(folder / "subwords/subwords.yaml")
        model = ModelSettings.model_validate(description["model"])
        tokenizer = TokenizerSettings.model_validate(description["tokenizer"])
        subwords = SubwordSettings.model_validate(learned["settings"])
    except (OSError, LookupError, TypeError, ValidationError) as error:
        raise InputError(f"{folder} is no model folder ({error}): name another one") from error
    misfits = configuration.model.misfits(model, "model", FREE)
    misfits += configuration.preparation.tokenizer.misfits(tokenizer, "preparation.tokenizer")
    misfits += configuration.subwords.misfits(subwords, "subwords", SubwordSettings.model_fields.keys() - {"target"})
    if misfits:
        raise InputError(f"training.start_from: {folder} does not fit: {'; '.join(misfits)}; set the parent's")
    start = start.model_copy(update={"weights": sha256_of(folder / WEIGHTS)})
    training = configuration.training.model_copy(update={"start_from": start})
    return configuration.model_copy(update={"training": training, "subwords": subwords})


def found(start: StartSettings) -> Path:
    """Return the parent's model folder; raise InputError without one, or where its weights are not `start.weights`."""
    # DVC's experiments run in a copy of the repository; files that git ignores are in the original.
    roots = (Path(), Path(os.environ.get("DVC_ROOT", ".")))
    folders = (root / start.folder / part for root in roots for part in (Path(), AVERAGE))
    folder = next((folder for folder in folders if (folder / WEIGHTS).is_file()), None)
    if folder is None:
        raise InputError(
            f"training.start_from is {start.folder}, but neither it nor its {AVERAGE} holds {WEIGHTS}: name the folder "
            "of a model or of a run"
        )
    if start.weights is not None and (sha256 := sha256_of(folder / WEIGHTS)) != start.weights:
        raise InputError(
            f"{folder / WEIGHTS} has the sha256 {sha256}, not {start.weights}: restore it, or take it as it is with "
            "`dvc repro --force --single-item resolve`"
        )
    return folder
