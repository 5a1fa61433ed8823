"""Corpora as data: the YAML files of data/catalog/, each complete or extending another."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from nmt.config import InputError, Settings
from pipeline.config.errors import nearest, read_mapping, validated
from pipeline.config.paths import CATALOGS
from pipeline.config.settings import (
    REPACKED,
    ArchiveSettings,
    DataSettings,
    Md5,
    Name,
    Pair,
    ParallelSettings,
    Sha256,
)

Url = Annotated[str, Field(pattern=r"^(https?://[^/\s]+/|file:)\S+$")]
"""http, https, or file: with a path relative to the repository."""


class ArchiveEntry(Settings):
    """One file to download. The checks hold for all mirrors, which have the same bytes."""

    url: Url
    mirrors: list[Url] = Field(default_factory=list)
    repacked: list[Url] = Field(default_factory=list)
    """Archives of the same members but other bytes, used if no mirror answers; checked against their first download."""
    bytes: Annotated[int, Field(ge=1)] | None = None
    sha256: Sha256 | None = None
    md5: Md5 | None = None
    licence: str
    source: str  # the corpus's page


class PairEntry(Settings):
    """The texts of one pair, and the differences of their preparation from the row's."""

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
    """A catalog, completed by what it extends."""

    name: Name
    description: str
    archives: dict[Name, ArchiveEntry] = Field(default_factory=dict)
    pairs: dict[Pair, PairEntry]


class CatalogFile(Settings):
    """A YAML file of data/catalog/, before it is merged with the catalog that it extends and checked."""

    description: str | None = None
    archives: dict[str, Any] = Field(default_factory=dict)
    pairs: dict[str, dict[str, Any]] = Field(default_factory=dict)
    extends: str | None = None
    base_url: Annotated[str, Field(pattern=r"^(https?://[^/\s]+|file:)\S*$")] | None = None
    checksums: str | None = None

    @model_validator(mode="after")
    def _complete_mirror(self) -> CatalogFile:
        mirror = {self.base_url is None, self.checksums is None}
        if len(mirror) > 1 or (self.base_url is not None and self.extends is None):
            raise ValueError("a mirror needs `extends`, `base_url` and `checksums`, all three")
        return self


def names() -> list[str]:
    return sorted(path.stem for path in CATALOGS.glob("*.yaml"))


def load(name: str) -> Catalog:
    """Return the catalog `name`, completed by what it extends; raise InputError where it is unknown or invalid."""
    return validated(Catalog, {"name": name, **_content(name, "corpus", ())}, _path(name))


def data_settings(catalog: Catalog, pair: Pair) -> DataSettings:
    """Return the texts of `pair` and their archives.

    Raises InputError where one is unknown, and where a text of trees is not one treebank on both sides.
    """
    entry = pair_entry(catalog, pair)
    source, target = pair.split("-")
    content = {"source": source, "target": target, "archives": []}
    texts = {"train": entry.train, "valid": entry.valid, "test": entry.test}
    data = validated(DataSettings, {**content, **texts}, _path(catalog.name))
    used = [side.archive for _, text in data.texts for side in (text.source, text.target)]
    archives = [_archive(catalog, name) for name in dict.fromkeys(used) if name is not None]
    return data.model_copy(update={"archives": archives})


def pair_entry(catalog: Catalog, pair: Pair) -> PairEntry:
    """Return the catalog's entry for `pair`; raise InputError where it has none."""
    if pair not in catalog.pairs:
        raise InputError(f"{_path(catalog.name)} has no pair `{pair}`; {nearest(pair, catalog.pairs)}")
    return catalog.pairs[pair]


def _path(name: str) -> Path:
    return CATALOGS / f"{name}.yaml"


def _archive(catalog: Catalog, name: str) -> ArchiveSettings:
    if name not in catalog.archives:
        raise InputError(
            f"{_path(catalog.name)}: a text names the archive `{name}`, which is unknown (a mirror has those that its "
            f"checksums list); {nearest(name, catalog.archives)}"
        )
    entry = catalog.archives[name]
    checks = entry.model_dump(exclude={"url", "mirrors", "repacked"})
    repacked = [REPACKED + url for url in entry.repacked]
    return ArchiveSettings(name=name, urls=[entry.url, *entry.mirrors, *repacked], **checks)


def _content(name: str, where: str, extending: tuple[str, ...]) -> dict[str, Any]:
    """Return the content of a catalog that `where` names, merged over what it extends."""
    path, known = _path(name), names()
    if name in extending:
        raise InputError(f"{where} `{name}`, and so itself; remove one `extends`")
    if name not in known:
        raise InputError(f"{where} `{name}`: {CATALOGS} has no such catalog; {nearest(name, known)}")
    file = validated(CatalogFile, read_mapping(path, "description, archives and pairs"), path)
    own = file.model_dump(exclude={"extends", "base_url", "checksums"}, exclude_unset=True)
    if file.extends is None:
        return own
    base = _content(file.extends, f"{path} extends", (*extending, name))
    pairs = dict(base.get("pairs", {}))
    for pair, entry in file.pairs.items():
        pairs[pair] = {**pairs.get(pair, {}), **entry}
    content = {**base, **own, "archives": {**base.get("archives", {}), **file.archives}, "pairs": pairs}
    if file.base_url is None:
        return content
    catalog = validated(Catalog, {"name": name, **content}, path)
    return _mirrored(catalog, file.base_url, path.parent / str(file.checksums))


def _mirrored(catalog: Catalog, base_url: str, checksums: Path) -> dict[str, Any]:
    """Return the content of a catalog with its texts from another server, checked by that server's checksums."""
    listed, archives = _read_checksums(checksums), {}
    for name, entry in catalog.archives.items():
        path = urlsplit(entry.url).path.lstrip("/")
        if path in listed:  # What is not listed could be used only unchecked.
            sha256, size = listed[path]
            changes = {"url": f"{base_url.rstrip('/')}/{path}", "mirrors": [], "repacked": []}
            archives[name] = {**entry.model_dump(), **changes, "bytes": size, "sha256": sha256, "md5": None}
    content = catalog.model_dump(exclude={"name"})
    for pair in content["pairs"].values():
        for text in (*pair["train"], pair["valid"], pair["test"]):
            for side in (text["source"], text["target"]):
                if side["archive"] is not None:
                    # These are checksums of the original texts; a mirror may have shorter ones.
                    side["sha256"] = side["md5"] = None
    return {**content, "archives": archives}


def _read_checksums(path: Path) -> dict[str, tuple[str, int]]:
    """Return the content of a checksums file: path -> (sha256, bytes)."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the mirror's checksums cannot be read ({error}); fix the catalog's `checksums`") from error
    listed = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        match = re.fullmatch(r"([0-9a-f]{64}) +([1-9][0-9]{0,17}) +(\S.*?)\s*", line)
        if match is None:
            raise InputError(f"{path}, line {number}: `{line}` is not `sha256  bytes  path`; write it so")
        listed[match[3].removeprefix("./")] = (match[1], int(match[2]))
    return listed
