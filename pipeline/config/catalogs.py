"""Corpora as data: the YAML files of data/catalog/, each complete or extending another."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, Field, TypeAdapter, ValidationError, model_validator

from nmt.config import InputError, Settings, SubwordSettings
from pipeline.config.settings import (
    REPACKED,
    ArchiveSettings,
    DataSettings,
    Md5,
    MemberSettings,
    Name,
    ParallelSettings,
    PreparationSettings,
    Sha256,
)

CATALOGS = Path("data/catalog")
Pair = Literal["en-de", "en-fr"]
Url = Annotated[str, Field(pattern=r"^(https?://[^/\s]+/|file:)\S+$")]
"""http, https, or file: with a path relative to the repository."""


class ArchiveEntry(Settings):
    """One file to download. Mirrors hold the same bytes: the checks are one for all."""

    url: Url
    mirrors: list[Url] = Field(default_factory=list)
    repacked: list[Url] = Field(default_factory=list)
    """The same members in archives of other bytes, for when no mirror answers: held to their own first download."""
    bytes: Annotated[int, Field(ge=1)] | None = None
    sha256: Sha256 | None = None
    md5: Md5 | None = None
    licence: str
    source: str
    """The corpus's page."""


class PairEntry(Settings):
    """The texts of one pair, and what their preparation differs in from the row's."""

    train: Annotated[list[ParallelSettings], Field(min_length=1)]
    valid: ParallelSettings
    test: ParallelSettings
    preparation: dict[str, Any] = Field(default_factory=dict)
    subwords: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _names_differ(self) -> PairEntry:
        names = [text.name for text in self.train]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two training corpora are called `{twice[0]}`; give each its own name")
        return self


class Catalog(Settings):
    """A catalog with all that it extends filled in."""

    name: Name
    description: str
    archives: dict[Name, ArchiveEntry] = Field(default_factory=dict)
    pairs: dict[Pair, PairEntry]
    unlisted: dict[str, str] = Field(default_factory=dict)
    """Archives that the mirror's checksums file does not list, and that file: without checks none is used."""


_OVERLAY = ("extends", "base_url", "checksums")
_KEYS = ("description", "archives", "pairs", *_OVERLAY)


def names() -> list[str]:
    """The names of all catalogs, sorted."""
    return sorted(path.stem for path in CATALOGS.glob("*.yaml"))


def load(name: str) -> Catalog:
    """The catalog `name`, what it extends filled in; raises InputError where it is unknown or wrong."""
    try:
        return Catalog.model_validate({"name": name, **_content(name, ())})
    except ValidationError as error:
        raise InputError(f"{_path(name)}: {_explain(error)}") from error


def data_settings(catalog: Catalog, pair: str) -> DataSettings:
    """The texts of `pair` and the archives that they lie in; raises InputError where one is not there."""
    entry = _entry(catalog, pair)
    archives: dict[str, ArchiveSettings] = {}
    for side in _sides([*entry.train, entry.valid, entry.test]):
        if side.archive is not None and side.archive not in archives:
            archives[side.archive] = _archive(catalog, side.archive)
    source, target = pair.split("-")
    return DataSettings(
        source=source,
        target=target,
        archives=list(archives.values()),
        train=entry.train,
        valid=entry.valid,
        test=entry.test,
    )


def preparation(catalog: Catalog, pair: str) -> dict[str, Any]:
    """What the catalog sets of PreparationSettings; raises InputError for a key that those do not have."""
    partial = _entry(catalog, pair).preparation
    _check_keys(partial, PreparationSettings, f"{_path(catalog.name)}, pairs.{pair}.preparation")
    return partial


def subwords(catalog: Catalog, pair: str) -> dict[str, Any]:
    """What the catalog sets of SubwordSettings; raises InputError for a key that those do not have."""
    partial = _entry(catalog, pair).subwords
    _check_keys(partial, SubwordSettings, f"{_path(catalog.name)}, pairs.{pair}.subwords")
    return partial


def _path(name: str) -> Path:
    return CATALOGS / f"{name}.yaml"


def _nearest(name: object, valid: Iterable[str]) -> str:
    """What a message about an unknown name ends in."""
    known = sorted(valid)
    close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    return f"did you mean `{close[0]}`?" if close else f"there is {', '.join(f'`{one}`' for one in known) or 'none'}"


def _entry(catalog: Catalog, pair: str) -> PairEntry:
    for known, entry in catalog.pairs.items():
        if known == pair:
            return entry
    raise InputError(f"{_path(catalog.name)} has no pair `{pair}`; {_nearest(pair, catalog.pairs)}")


def _sides(texts: Iterable[ParallelSettings]) -> list[MemberSettings]:
    return [side for text in texts for side in (text.source, text.target)]


def _archive(catalog: Catalog, name: str) -> ArchiveSettings:
    where = _path(catalog.name)
    if name in catalog.unlisted:
        raise InputError(
            f"{where}: the archive `{name}` is not listed in {catalog.unlisted[name]}, and nothing unchecked is used; "
            f"add its line: sha256, bytes and path"
        )
    if name not in catalog.archives:
        raise InputError(
            f"{where}: a text lies in the archive `{name}`, which is unknown; {_nearest(name, catalog.archives)}"
        )
    entry = catalog.archives[name]
    checks = entry.model_dump(exclude={"url", "mirrors", "repacked"})
    repacked = [REPACKED + url for url in entry.repacked]
    return ArchiveSettings(name=name, urls=[entry.url, *entry.mirrors, *repacked], **checks)


def _read(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no mapping: write `description`, `archives` and `pairs`")
    return content


def _content(name: str, below: tuple[str, ...]) -> dict[str, Any]:
    """A catalog's file over what it extends, not yet checked but for its topmost keys."""
    path = _path(name)
    if name in below:
        raise InputError(f"{path} extends itself by way of {' and '.join(below)}; take one `extends` out")
    if name not in names():
        where = f"{_path(below[-1])} extends" if below else "corpus"
        raise InputError(f"{where} `{name}`: {CATALOGS} has no such catalog; {_nearest(name, names())}")
    content = _read(path)
    for key in content:
        if key not in _KEYS:
            raise InputError(f"{path}: unknown key `{key}`; {_nearest(key, _KEYS)}")
    base, base_url, checksums = (content.pop(key, None) for key in _OVERLAY)
    if (base_url is None) != (checksums is None) or (base_url is not None and base is None):
        raise InputError(f"{path}: a mirror needs `extends`, `base_url` and `checksums`, all three")
    if base is None:
        return content
    merged = _over(_content(str(base), (*below, name)), content, path)
    return merged if base_url is None else _mirrored(merged, str(base_url), path.parent / str(checksums), path)


def _over(base: dict[str, Any], content: dict[str, Any], path: Path) -> dict[str, Any]:
    """`content` over `base`: an archive takes the place of the one of its name, a pair's every key that key's."""
    for layer in (base, content):
        for key in ("archives", "pairs"):
            if not isinstance(layer.get(key, {}), dict):
                raise InputError(f"{path}: `{key}` holds no mapping; write `name: {{...}}` lines under it")
    archives, pairs = content.get("archives", {}), dict(base.get("pairs", {}))
    for pair, entry in content.get("pairs", {}).items():
        known = pairs.get(pair)
        pairs[pair] = {**known, **entry} if isinstance(known, dict) and isinstance(entry, dict) else entry
    # What a mirror lacks, the catalog over it may bring.
    unlisted = {name: at for name, at in base.get("unlisted", {}).items() if name not in archives}
    filled = {"archives": {**base.get("archives", {}), **archives}, "pairs": pairs, "unlisted": unlisted}
    return {**base, **content, **filled}


def _mirrored(merged: dict[str, Any], base_url: str, checksums: Path, path: Path) -> dict[str, Any]:
    """The same texts from another server, whose own bytes are held to its own checksums."""
    try:
        parent = Catalog.model_validate({"name": path.stem, **merged})
        TypeAdapter(Url).validate_python(f"{base_url.rstrip('/')}/x")
    except ValidationError as error:
        told = _explain(error) if error.title == "Catalog" else f"base_url is `{base_url}`: give an http(s) address"
        raise InputError(f"{path}: {told}") from error
    listed = _listed(checksums)
    archives, unlisted = {}, dict(parent.unlisted)
    for name, entry in parent.archives.items():
        place = urlsplit(entry.url).path.lstrip("/")
        if place not in listed:
            unlisted[name] = str(checksums)
            continue
        sha256, size = listed[place]
        url = f"{base_url.rstrip('/')}/{place}"
        changes = {"url": url, "mirrors": [], "repacked": [], "bytes": size, "sha256": sha256, "md5": None}
        archives[name] = entry.model_copy(update=changes).model_dump()
    content = parent.model_dump(exclude={"name"})
    for entry in content["pairs"].values():
        for text in (*entry["train"], entry["valid"], entry["test"]):
            for side in (text["source"], text["target"]):
                if side["archive"] is not None:
                    # Of the originals' texts, which a mirror may have shortened.
                    side["sha256"] = side["md5"] = None
    return {**content, "archives": archives, "unlisted": unlisted}


def _listed(path: Path) -> dict[str, tuple[str, int]]:
    """A checksums file: path -> (sha256, bytes)."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the mirror's checksums cannot be read ({error}); mend the catalog's `checksums`") from error
    listed = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        match = re.fullmatch(r"([0-9a-f]{64}) +([1-9][0-9]{0,17}) +(\S.*?)\s*", line)
        if match is None:
            raise InputError(f"{path}, line {number}: `{line}` is not `sha256  bytes  path`; write it so")
        listed[match[3].removeprefix("./")] = (match[1], int(match[2]))
    return listed


def _explain(error: ValidationError) -> str:
    """The first thing that is wrong with a catalog: key, value, rule and, for an unknown key, the nearest."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown key `{key}`; {_nearest(first['loc'][-1], _fields(Catalog, first['loc'][:-1]))}"
    if first["loc"][:1] == ("pairs",) and first["loc"][-1] == "[key]":
        return f"unknown pair `{first['input']}`; {_nearest(first['input'], get_args(Pair))}"
    rule = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        return f"the key `{key}` is missing; add it"
    value = "" if isinstance(first["input"], (dict, list, BaseModel)) else f" is `{first['input']}`"
    return f"{key}{value}: {rule}" if key else rule


def _fields(kind: Any, location: tuple[int | str, ...]) -> list[str]:
    """The keys valid at a place of a model."""
    for step in location:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            kind = kind.model_fields[str(step)].annotation
        elif get_origin(kind) in (dict, list):
            kind = get_args(kind)[-1]
        inner = [one for one in get_args(kind) if one is not NoneType]
        if get_origin(kind) not in (dict, list) and inner:
            kind = inner[0]
    return list(kind.model_fields)


def _check_keys(partial: Mapping[str, Any], model: type[BaseModel], where: str) -> None:
    """Raise InputError for a key that `model` does not have; values are checked once all is merged."""
    for key, value in partial.items():
        if key not in model.model_fields:
            raise InputError(f"{where}: unknown key `{key}`; {_nearest(key, model.model_fields)}")
        inner = model.model_fields[key].annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            if not isinstance(value, dict):
                raise InputError(f"{where}.{key} is `{value}`: write `key: value` lines under it")
            _check_keys(value, inner, f"{where}.{key}")
