"""Merge params.yaml, the row and the corpus' catalog into the complete, checked configuration of the run.

Order, later over earlier: base, the pair's differences, the catalog's, the row's, params.yaml's overrides.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import ValidationError, model_validator

from nmt.config import InputError
from pipeline.common.paths import PARAMS
from pipeline.common.settings import Configuration, RunSettings, VersionSettings
from pipeline.config import catalogs, rows
from pipeline.config.errors import explain, read_mapping, validated

Layer = tuple[str, Mapping[str, Any]]
"""The origin of values, for messages, and the values: section -> key -> value."""
Section = Literal["preparation", "subwords", "binning", "model", "training", "averaging", "search", "attention"]
SECTIONS = get_args(Section)
"""Sections that rows, catalogs and overrides may set."""


class Params(RunSettings):
    """The content of params.yaml. An empty section overrides nothing."""

    overrides: dict[Section, dict[str, Any] | None] | None = None

    @model_validator(mode="after")
    def _one_seed(self) -> Params:
        if "seed" in ((self.overrides or {}).get("training") or {}):
            raise ValueError(f"overrides.training.seed is set once, by `seed` at the top of {PARAMS}; move it there")
        return self


def resolve(params: Mapping[str, Any]) -> Configuration:
    """Return the complete configuration of the run that `params`, the content of params.yaml, describes.

    Raises InputError, with key, value, rule and nearest valid name, where a key is unknown, a value out of range, or
    settings contradict each other. Overrides may shorten the training to fewer checkpoints than `averaging.last`.
    """
    asked = validated(Params, params, PARAMS)
    run = RunSettings.model_validate(asked.model_dump(exclude={"overrides"}))
    overrides: dict[str, dict[str, Any]] = {
        section: values for section, values in (asked.overrides or {}).items() if values is not None
    }
    row_layers = rows.row_differences(run.row, run.pair)
    catalog = catalogs.load(run.corpus)
    corpus = catalogs.pair_entry(catalog, run.pair)
    layers: list[Layer] = [
        *rows.pair_differences(run.pair),
        (f"the catalog {run.corpus}", {"preparation": corpus.preparation, "subwords": corpus.subwords}),
        *row_layers,
        (f"{PARAMS}, seed", {"training": {"seed": run.seed}}),
        (f"{PARAMS}, overrides", overrides),
    ]
    merged: dict[str, Any] = {}
    for _, differences in layers:
        merged = rows.merge(merged, differences)
    versions = {name: importlib.metadata.version(name.replace("_", "-")) for name in VersionSettings.model_fields}
    data = catalogs.data_settings(catalog, run.pair)
    try:
        configuration = Configuration.model_validate({"run": run, "data": data, **merged, "versions": versions})
    except ValidationError as error:
        origin = _origin(error.errors()[0]["loc"], layers)
        raise InputError(f"{origin}: {explain(error, Configuration)}") from error
    shortened = "updates" in overrides.get("training", {}) and "last" not in overrides.get("averaging", {})
    if not shortened and (missing := checkpoint_shortage(configuration)):
        raise InputError(
            f"{PARAMS}: {missing}: raise training.updates, or lower training.checkpoint_every or averaging.last"
        )
    return configuration


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


def checkpoint_shortage(configuration: Configuration) -> str | None:
    """Return a message where training leaves fewer checkpoints than are to be averaged, else None."""
    training, last = configuration.training, configuration.averaging.last
    if configuration.checkpoints >= last:
        return None
    return (
        f"averaging.last is {last}, but {training.updates:,} updates with a checkpoint every "
        f"{training.checkpoint_every:,} (training.updates, training.checkpoint_every) leave {configuration.checkpoints}"
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
