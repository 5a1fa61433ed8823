"""Sentences for users about settings that pydantic refuses, and YAML files that hold no mapping."""

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from nmt.common.files import read_yaml
from nmt.errors import InputError, explain

NAMED = 60  # the most valid names that a message lists
Model = TypeVar("Model", bound=BaseModel)


def validated(model: type[Model], content: object, path: Path) -> Model:
    """Return `content`, from the file `path`, as a `model`; raise InputError where it is invalid."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise InputError(f"{path}: {explanation(error, model)}") from error


def explanation(error: ValidationError, model: type[BaseModel]) -> str:
    """Return the first error in one sentence: key, value and rule, or for an unknown key the nearest valid one."""
    first = error.errors(include_url=False)[0]
    location = [part for part in first["loc"] if part != "[key]"]
    key = ".".join(map(str, location))
    if first["type"] == "extra_forbidden":
        return f"unknown key `{key}`; {nearest(str(location[-1]), valid_keys(model, location[:-1]))}"
    return explain(error)


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return the end of an error message about an unknown `name`: the nearest valid name, and all of them."""
    folded = {option.lower(): option for option in valid}
    close = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    guess = f"did you mean `{folded[close[0]]}`? " if close else ""
    named = [*folded.values()]
    more = f" and {len(named) - NAMED:,} more" if len(named) > NAMED else ""
    return f"{guess}valid are {', '.join(named[:NAMED]) or 'none'}{more}"


def valid_keys(model: Any, location: Sequence[int | str]) -> list[str]:
    for step in location:
        if isinstance(model, type) and issubclass(model, BaseModel):
            model = model.model_fields[str(step)].annotation
        else:
            model = get_args(model)[-1]
        inner = [one for one in get_args(model) if one is not NoneType]
        if get_origin(model) not in (dict, list) and inner:
            model = inner[0]
    # `seed` stands at the top of params.yaml.
    return [name for name in model.model_fields if (*location, name) != ("training", "seed")]


def read_mapping(path: Path, keys: str) -> dict[str, Any]:
    """Return the mapping in a YAML file; raise InputError where it is unreadable or holds none, naming its `keys`."""
    try:
        content = read_yaml(path)
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing: run from the repository's root, or restore it with git") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no mapping: it needs the keys {keys}")
    return content
