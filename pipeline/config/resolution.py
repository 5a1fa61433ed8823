"""Merge params.yaml, the row and the corpus' catalog into the complete, checked configuration of the run.

Order, later over earlier: base, the pair's differences, the catalog's, the row's, params.yaml's overrides.
"""

import importlib.metadata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import ValidationError, model_validator

from nmt.errors import InputError
from nmt.task import task_of
from nmt.training.settings import TrainingSettings
from pipeline.config import catalogs, rows
from pipeline.config.corpora import RunSettings
from pipeline.config.errors import explanation, nearest, read_mapping, validated
from pipeline.config.paths import PARAMS
from pipeline.config.sections import SECTIONS, AveragingSettings, VersionSettings
from pipeline.config.settings import Configuration

Layer = tuple[str, Mapping[str, Any]]  # the origin of values, for messages, and the values: section -> key -> value
OVERRIDABLE = (*SECTIONS, "attention")
OF_CORPUS = ("preparation.", "subwords.")  # what the keys of settings begin with that a catalog may set


class Params(RunSettings):
    """The content of params.yaml. An empty section overrides nothing."""

    overrides: dict[str, dict[str, Any] | None] | None = None

    @model_validator(mode="before")
    @classmethod
    def _sections_known(cls, params: dict[str, Any]) -> dict[str, Any]:
        overrides = params.get("overrides")
        for name in overrides if isinstance(overrides, dict) else ():
            section, dot, key = str(name).partition(".")
            if section in OVERRIDABLE and dot:
                nested = key.replace(".", ": {") + ": ..." + "}" * key.count(".")
                raise ValueError(f"write `overrides: {{{section}: {{{nested}}}}}`, not `{name}`")
            if section not in OVERRIDABLE:
                raise ValueError(f"unknown key `overrides.{name}`; {nearest(section, OVERRIDABLE)}")
        return params

    @model_validator(mode="after")
    def _overrides_allowed(self) -> Self:
        training = (self.overrides or {}).get("training") or {}
        if self.overrides and self.overrides.get("subwords") and training.get("start_from"):
            remedy = "remove overrides.subwords, as with `dvc exp run -S '~overrides.subwords'`"
            raise ValueError(f"with overrides.training.start_from the subwords are the parent's: {remedy}")
        if "seed" in training:
            raise ValueError(f"overrides.training.seed is set once, by `seed` at the top of {PARAMS}; move it there")
        return self


def changed(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a resolved configuration that are not those of its row, by their full keys."""
    run = configuration["run"]
    of_row = dict(rows.flat(rows.settings(run["row"], run["pair"])))
    sections = {section: configuration[section] for section in OVERRIDABLE if section in configuration}
    if sections.get("training", {}).get("start_from"):
        sections.pop("subwords", None)  # They are the parent's.
    chosen = rows.flat(sections)
    return {key: value for key, value in chosen if key != "training.seed" and of_row.get(key) != value}


def name(configuration: Mapping[str, Any]) -> str:
    """Return a run's name, what differs first, for narrow columns: `N=3 updates=200 · sample-sample-s1`."""
    run = configuration["run"]
    # The corpus decides the other sections.
    chosen = {
        key.removesuffix(".folder"): value
        for key, value in changed(configuration).items()
        if not key.startswith(OF_CORPUS) and key != "training.start_from.weights"
    }
    return " · ".join(filter(None, (" ".join(in_words(chosen)), f"{run['row']}-{run['corpus']}-s{run['seed']}")))


def in_words(settings: Mapping[str, Any]) -> list[str]:
    """Return the first three settings by the last part of their keys, for the name of a run: `updates=1400`."""
    return [f"{key.rpartition('.')[2]}={value}" for key, value in settings.items() if value != {}][:3]


def resolve(params: Mapping[str, Any]) -> Configuration:
    """Return the complete configuration of the run that `params`, the content of params.yaml, describes.

    Raises InputError, with key, value, rule and nearest valid name, where a key is unknown, a value out of range, or
    settings contradict each other. Overrides may shorten the training to fewer checkpoints than `averaging.last`.
    """
    asked = validated(Params, params, PARAMS)
    run = RunSettings.model_validate(asked.model_dump(exclude={"overrides"}))
    overrides = {section: values for section, values in (asked.overrides or {}).items() if values is not None}
    base, pair, *row = rows.differences(run.row, run.pair)
    task = task_of(run.pair)
    if task_of(rows.row(run.row).pair) is not task:
        fitting = ", ".join(name for name, one in rows.table().rows.items() if task_of(one.pair) is task)
        raise InputError(f"{PARAMS}: row {run.row} does not {task.verb} {run.pair}; rows that do are {fitting}")
    catalog = catalogs.load(run.corpus)
    corpus = catalogs.pair_entry(catalog, run.pair)
    layers: list[Layer] = [
        *(base, pair),
        (f"the catalog {run.corpus}", {"preparation": corpus.preparation, "subwords": corpus.subwords}),
        *row,
        (f"{PARAMS}, seed", {"training": {"seed": run.seed}}),
        (f"{PARAMS}, overrides", overrides),
    ]
    merged: dict[str, Any] = reduce(rows.merge_sections, (content for _, content in layers), {})
    versions = {name: importlib.metadata.version(name.replace("_", "-")) for name in VersionSettings.model_fields}
    data = catalogs.data_settings(catalog, run.pair)
    try:
        configuration = Configuration.model_validate({"run": run, "data": data, **merged, "versions": versions})
    except ValidationError as error:
        origin = _origin(error.errors()[0]["loc"], layers)
        raise InputError(f"{origin}: {explanation(error, Configuration)}") from error
    _check_task(configuration, layers)
    shortened = "updates" in overrides.get("training", {}) and not {"last", "best"} & {*overrides.get("averaging", ())}
    if not shortened:
        _check_checkpoints(configuration.training, configuration.averaging)
    return configuration


def _check_task(configuration: Configuration, layers: list[Layer]) -> None:
    """Raise InputError where the preparation or the model is not one for the pair's task."""
    pair, subwords, task = configuration.run.pair, configuration.subwords, task_of(configuration.run.pair)
    tokenizer, sharing = configuration.preparation.tokenizer.tokenizer, configuration.model.sharing
    rules: list[tuple[str, str, tuple[str, ...]]] = [("preparation.tokenizer.tokenizer", tokenizer, task.tokenizers)]
    rules += [("subwords.target", subwords.target, task.targets)]
    # A vocabulary of the target's own cannot share the source's table.
    rules += [("model.sharing", sharing, ("output", "none"))] if subwords.target == "closed" else []
    for key, value, fitting in rules:
        if value not in fitting:
            problem = f"{key} is {value}, which cannot {task.verb} {pair}: set {' or '.join(fitting)}"
            raise InputError(f"{_origin(key.split('.'), layers)}: {problem}")


def _origin(path: Sequence[int | str], layers: list[Layer]) -> str:
    """Return the origin of the value at `path`: the last layer that sets it or, for a section, a key in it."""
    for origin, content in reversed(layers):
        value: Any = content
        with suppress(LookupError, TypeError):
            for part in path:
                value = value[part]
            if path and (len(path) > 1 or value):
                return origin
    return str(PARAMS)


def _check_checkpoints(training: TrainingSettings, averaging: AveragingSettings) -> None:
    """Raise InputError where training leaves fewer checkpoints than are to be averaged; with `best`, validated ones."""
    every, last, (key, requested) = training.checkpoint_every, training.updates, averaging.requested
    kept = range(last - last % every, 0, -every)[: training.keep_checkpoints]
    validated = [update for update in kept if update == last or update % training.validate_every == 0]
    left = len(kept if averaging.best is None else validated)
    if left < requested:
        validation = f" with a validation (every {training.validate_every:,}: training.validate_every)"
        raise InputError(
            f"{PARAMS}: {key} is {requested}, but {last:,} updates with a checkpoint every {every:,} "
            f"(training.updates, training.checkpoint_every) leave {left}{validation if averaging.best else ''}: "
            f"raise training.updates, or lower {key} or training.checkpoint_every, which trains anew"
        )


def text(configuration: Configuration) -> str:
    """Return the content of results/config.yaml: equal bytes for equal configurations."""
    run = configuration.run
    header = (
        f"# Made by `python -m pipeline resolve` from {PARAMS}, pipeline/config/{rows.ROWS.name} (row {run.row}) and\n"
        f"# data/catalog/{run.corpus}.yaml. Change those, not this.\n"
    )
    content = configuration.model_dump(mode="json")
    return header + yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)


def read_params(path: Path = PARAMS) -> dict[str, Any]:
    """Return the content of params.yaml; raise InputError where it is missing or no YAML mapping."""
    return read_mapping(path, "row, pair, corpus, seed and overrides")
