"""Merge params.yaml, the row and the corpus' catalog into the full, checked configuration of the run.

Order, later over earlier: base, the pair's differences, the catalog's, the row's, params.yaml's overrides.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from nmt.config import InputError
from pipeline.config import catalogs, rows
from pipeline.config.rows import Pair
from pipeline.config.settings import Configuration, RunSettings, VersionSettings

PARAMS = Path("params.yaml")
SECTIONS = ("preparation", "subwords", "binning", "model", "training", "averaging", "search")
"""What rows, catalogs and overrides may set."""

Layer = tuple[str, Mapping[str, Any]]
"""Where a value stands, in words, and the values: section -> key -> value."""


def resolve(params: Mapping[str, Any]) -> Configuration:
    """The full configuration of the run that `params` (the content of params.yaml) asks for.

    Raises InputError, naming the key, the value, the rule and the nearest valid name, where one is unknown, a value
    is out of its range, or settings contradict each other. Fewer checkpoints than `averaging.last` are no contradiction
    where the overrides set `training.updates` and not `averaging.last`: the run is shortened, for a trial.
    """
    run, overrides = _run(params), _overrides(params)
    pair = run.pair
    corpus = catalogs.load(run.corpus)
    layers: list[Layer] = [
        *rows.pair_layers(pair),
        (
            f"the catalog {run.corpus}",
            {"preparation": catalogs.preparation(corpus, pair), "subwords": catalogs.subwords(corpus, pair)},
        ),
        *rows.row_layers(run.row, pair),
        (f"{PARAMS}, seed", {"training": {"seed": run.seed}}),
        (f"{PARAMS}, overrides", overrides),
    ]
    merged: dict[str, Any] = {}
    for _, differences in layers:
        merged = rows.merge(merged, differences)
    content = {
        "run": run,
        "data": catalogs.data_settings(corpus, pair),
        **{section: merged[section] for section in SECTIONS},
        "versions": VersionSettings(
            **{name: importlib.metadata.version(name.replace("_", "-")) for name in VersionSettings.model_fields}
        ),
    }
    try:
        configuration = Configuration.model_validate(content)
    except ValidationError as error:
        raise InputError(_sentence(error, layers)) from error
    shortened = "updates" in overrides.get("training", {}) and "last" not in overrides.get("averaging", {})
    if not shortened and (missing := shortage(configuration)):
        raise InputError(
            f"{PARAMS}: {missing}: raise training.updates, or lower training.checkpoint_every or averaging.last"
        )
    return configuration


def _run(params: Mapping[str, Any]) -> RunSettings:
    """What params.yaml says besides overrides."""
    valid = (*RunSettings.model_fields, "overrides")
    for key in params:
        if key not in valid:
            raise InputError(f"{PARAMS}: unknown key `{key}`; {_nearest(key, valid)}")
    for key in RunSettings.model_fields:
        if params.get(key) is None:
            raise InputError(f"{PARAMS}: `{key}` is missing: give it a value")
    rows.row(str(params["row"]))
    pairs = get_args(Pair)
    if params["pair"] not in pairs:
        raise InputError(f"{PARAMS}, pair: `{params['pair']}` is unknown; {_nearest(params['pair'], pairs)}")
    try:
        return RunSettings.model_validate({key: params[key] for key in RunSettings.model_fields})
    except ValidationError as error:
        raise InputError(_sentence(error, [(str(PARAMS), params)])) from error


def _overrides(params: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The overrides of params.yaml; a section left empty overrides nothing."""
    where = f"{PARAMS}, overrides"
    overrides = params.get("overrides") or {}
    if not isinstance(overrides, Mapping):
        raise InputError(f"{where}: `{overrides}` is no mapping; write section, key and value: `model: {{N: 3}}`")
    for section, values in overrides.items():
        if section not in SECTIONS:
            raise InputError(f"{where}: unknown section `{section}`; {_nearest(section, SECTIONS)}")
        if values is not None and not isinstance(values, Mapping):
            raise InputError(f"{where}.{section}: `{values}` is no mapping; write `{section}: {{key: value}}`")
    if "seed" in (overrides.get("training") or {}):
        raise InputError(
            f"{where}.training.seed: the seed is set once, by `seed` at the top of {PARAMS}; move it there"
        )
    return {section: dict(values) for section, values in overrides.items() if values is not None}


def _nearest(name: object, valid: Any) -> str:
    return rows.nearest(str(name), valid)


def _sentence(error: ValidationError, layers: list[Layer]) -> str:
    """The first error of a validation in one sentence: where the value stands, its key, the value and the rule."""
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    where = _origin(path, layers)
    key = ".".join(path)
    if first["type"] == "extra_forbidden":
        return f"{where}: unknown key `{key}`; {_nearest(path[-1], _keys(path[:-1]))}"
    rule = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        return f"{where}: `{key}` is missing; {rule[0].lower()}{rule[1:]}"
    if isinstance(first["input"], Mapping | BaseModel):
        # A rule about several keys together names them itself.
        return f"{where}: {key}: {rule}" if key else f"{where}: {rule}"
    return f"{where}: {key} is {first['input']!r}; {rule[0].lower()}{rule[1:]}"


def _origin(path: list[str], layers: list[Layer]) -> str:
    """The last layer that says something at `path` or, where a rule concerns a whole section, in it."""
    for where, content in reversed(layers):
        at: Any = content
        for part in path:
            at = at.get(part) if isinstance(at, Mapping) else None
        if path and at is not None and at != {}:
            return where
    return layers[-1][0].split(",")[0]


def _keys(path: list[str]) -> list[str]:
    """The valid keys of the section at `path` of the configuration."""
    section: type[BaseModel] = Configuration
    for part in path:
        inner = section.model_fields[part].annotation
        assert isinstance(inner, type)
        section = inner
    return list(section.model_fields)


def shortage(configuration: Configuration) -> str | None:
    """What is wrong, in words, where training leaves fewer checkpoints than are to be averaged."""
    training, last = configuration.training, configuration.averaging.last
    if configuration.checkpoints >= last:
        return None
    return (
        f"averaging.last is {last}, but {training.updates:,} updates with a checkpoint every "
        f"{training.checkpoint_every:,} (training.updates, training.checkpoint_every) leave {configuration.checkpoints}"
    )


def text(configuration: Configuration) -> str:
    """The bytes of results/config.yaml: equal for equal configurations."""
    run = configuration.run
    header = (
        f"# Made by `python -m pipeline resolve` from {PARAMS}, pipeline/config/{rows.ROWS.name} (row {run.row}) and\n"
        f"# data/catalog/{run.corpus}.yaml. Change those, not this.\n"
    )
    content = configuration.model_dump(mode="json")
    return header + yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)


def read_params(path: Path = PARAMS) -> dict[str, Any]:
    """The content of params.yaml; raises InputError where it is missing or no YAML mapping."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing: run from the repository's root, or restore it with git") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 (byte {error.start}): save it as UTF-8") from error
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no mapping: it needs the keys row, pair, corpus, seed and overrides")
    return content
