"""Corpora as data: the YAML files of data/catalog/, each complete or extending another."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from nmt.errors import InputError
from nmt.schema import TREE, Settings
from pipeline.config import corpora
from pipeline.config.corpora import Pair, other_direction, sides
from pipeline.config.errors import nearest, read_mapping, validated
from pipeline.config.paths import CATALOGS
from pipeline.config.rows import merge


class PairEntry(Settings):
    """The texts of one pair, and the differences of their preparation from the row's."""

    train: Annotated[list[corpora.TrainingText], Field(min_length=1)]
    valid: corpora.ParallelSettings
    test: corpora.TestSets
    preparation: dict[str, Any] = Field(default_factory=dict)
    subwords: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        for what, texts in (("training corpora", self.train), ("test sets", self.test)):
            names = [text.name for text in texts]
            if twice := [name for name in names if names.count(name) > 1]:
                raise ValueError(f"two {what} are called `{twice[0]}`; give each its own name")
        return self


class Catalog(Settings):
    name: corpora.Name
    description: str
    extends: str | None = None  # the catalog that has what this one does not set
    archives: dict[corpora.Name, corpora.ArchiveEntry] = Field(default_factory=dict)
    pairs: dict[Pair, PairEntry]


def names() -> list[str]:
    return sorted(path.stem for path in CATALOGS.glob("*.yaml"))


def load(name: str) -> Catalog:
    """Return the catalog `name`, completed by what it extends, and its pairs by those of the other direction.

    Raises InputError where it is unknown or invalid.
    """
    content = {**_content(name, "corpus", ()), "name": name}
    if isinstance(listed := content.get("pairs"), dict):
        content["pairs"] = listed | {
            pair: {**_turned(entry), **(listed.get(pair) or {})}
            for pair, entry in ((other_direction(str(direction)), entry) for direction, entry in listed.items())
            if sides(pair)[0] != TREE and isinstance(entry, dict) and isinstance(listed.get(pair, {}), dict)
        }
    return validated(Catalog, content, _path(name))


def files(name: str) -> list[Path]:
    """Return the file of the catalog `name`, and those of the catalogs that it extends."""
    path = _path(name)
    base = load(name).extends
    return [path, *(files(base) if base else ())]


def data_settings(catalog: Catalog, pair: Pair) -> corpora.DataSettings:
    """Return the texts of `pair` and their archives.

    Raises InputError where one is unknown, and where a text of trees is not one treebank on both sides.
    """
    source, target = sides(pair)
    texts = pair_entry(catalog, pair).model_dump(include={"train", "valid", "test"})
    content = {"source": source, "target": target, "archives": [], **texts}
    data = validated(corpora.DataSettings, content, _path(catalog.name))
    used = [side.archive for _, text in data.texts for side in (text.source, text.target)]
    archives = []
    for name in filter(None, dict.fromkeys(used)):
        if name not in catalog.archives:
            known = nearest(name, catalog.archives)
            raise InputError(f"{_path(catalog.name)}: a text names the archive `{name}`, which is unknown; {known}")
        archives.append(corpora.ArchiveSettings(name=name, **catalog.archives[name].model_dump()))
    return data.model_copy(update={"archives": archives})


def pair_entry(catalog: Catalog, pair: Pair) -> PairEntry:
    """Return the catalog's entry for `pair`; raise InputError where it has none."""
    if pair not in catalog.pairs:
        raise InputError(f"{_path(catalog.name)} has no pair `{pair}`; {nearest(pair, catalog.pairs)}")
    return catalog.pairs[pair]


def _turned(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a pair's entry with the sides of every text swapped."""

    def turned(text: Any) -> Any:
        if isinstance(text, list):
            return [turned(item) for item in text]
        if not isinstance(text, dict):
            return text
        names = {"source": "target", "target": "source"}
        return {names.get(key, key): value for key, value in text.items()}

    return {key: turned(text) if key in ("train", "valid", "test") else text for key, text in entry.items()}


def _path(name: str) -> Path:
    return CATALOGS / f"{name}.yaml"


def _content(name: str, where: str, extending: tuple[str, ...]) -> dict[str, Any]:
    """Return the content of a catalog that `where` names, merged over what it extends."""
    path = _path(name)
    if name in extending:
        raise InputError(f"{where} `{name}`, and so itself; remove one `extends`")
    if not path.exists():
        missing = f"{where} `{name}`: {CATALOGS} has no such catalog (a copy of the repository has those in git)"
        raise InputError(f"{missing}; {nearest(name, names())}")
    content = read_mapping(path, "description, archives and pairs")
    base = content.get("extends")
    if base is None or isinstance(base, list | dict):  # The schema refuses the last two.
        return content
    # Archives and pairs are completed key by key; a text or a preparation takes the whole place of the other's.
    return merge(_content(str(base), f"{path} extends", (*extending, name)), content, depth=3)
