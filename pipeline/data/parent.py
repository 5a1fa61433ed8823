"""The model that a training starts from, identified by its weights and compared with the run's settings."""

from pydantic import ValidationError

from nmt.common.files import read_yaml, sha256_of
from nmt.errors import InputError
from nmt.model_settings import FREE, ModelSettings
from nmt.text.settings import SubwordSettings, TokenizerSettings
from pipeline.config.paths import AVERAGE, LAST
from pipeline.config.settings import Configuration
from pipeline.data import parent_folder
from pipeline.data.parent_folder import WEIGHTS


def with_parent(configuration: Configuration) -> Configuration:
    """Return the configuration with the sha256 of the parent's weights and with the parent's subwords.

    Without training.start_from it is unchanged. Raises InputError where the parent is missing, is a model that the run
    replaces, or does not fit; the message has both values of all that differs.
    """
    start = configuration.training.start_from
    if start is None:
        return configuration
    folder = parent_folder.find(start)
    if folder.resolve() in (AVERAGE.resolve(), LAST.resolve()):
        remedy = f"copy it, as with `cp -rT {folder} data/local/parent`, and start from data/local/parent"
        raise InputError(f"training.start_from is {start.folder}, which this run replaces: {remedy}")
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
