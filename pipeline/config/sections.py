"""The sections of results/config.yaml, which `resolve` writes, as stages read them."""

import importlib.metadata
from pathlib import Path
from typing import Any, Literal, TypeVar

from nmt.common.files import read_yaml
from nmt.errors import InputError, explained
from nmt.schema import Count, Few, Settings
from pipeline.config.paths import CONFIG

Section = TypeVar("Section", bound=Settings)

SECTIONS = ("preparation", "subwords", "binning", "model", "training", "averaging", "search", "scoring")
"""The sections that rows.yaml sets and that decide results."""


class AveragingSettings(Settings):
    """Checkpoint averaging; section 6.1."""

    last: Count
    """How many checkpoints are averaged: 5 for base, 20 for big."""
    best: Count | None = None
    """How many with the best validation perplexity are averaged instead, of those that training keeps; null: `last`."""

    @property
    def requested(self) -> tuple[str, int]:
        """Return the setting that says how many checkpoints are averaged, and its value."""
        return ("averaging.last", self.last) if self.best is None else ("averaging.best", self.best)


class AttentionSettings(Settings):
    sentences: Few  # pairs of the validation set that the report's page shows


class ScoringSettings(Settings):
    tokenize: Literal["13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "spm", "flores101", "flores200"] | None
    """sacreBLEU's tokenizer; null: the target language's."""


class VersionSettings(Settings):
    """Versions of the libraries that decide the bytes of stages' outputs."""

    sacremoses: str
    subword_nmt: str
    sentencepiece: str
    sacrebleu: str


def plain_section(name: str, path: Path = CONFIG) -> Any:
    """Return the section `name` of the resolved configuration as it is in the file; raise InputError without one."""
    if not path.exists():
        raise InputError(f"{path} is missing: run `dvc repro`, or `python -m pipeline resolve`, first")
    content = read_yaml(path)
    if not isinstance(content, dict) or name not in content:
        raise InputError(f"{path} has no section `{name}`: run `python -m pipeline resolve` again")
    return content[name]


def load_section(name: str, section: type[Section], path: Path = CONFIG) -> Section:
    """Return the section `name` of the resolved configuration; raise InputError where it is missing or invalid."""
    with explained(f"{path}, section `{name}`: ", "; resolve it again"):
        return section.model_validate(plain_section(name, path))


def check_versions(*libraries: str) -> None:
    """Raise InputError if the installed version of a library is not the one in the resolved configuration."""
    resolved = plain_section("versions")
    for library in libraries:
        installed = importlib.metadata.version(library.replace("_", "-"))
        if installed != resolved[library]:
            found = f"{library} {installed} is installed, but the run was resolved with {resolved[library]}"
            remedy = "run `make setup`, or resolve again with `dvc repro --force --single-item resolve`"
            raise InputError(f"{found}: {remedy}")
