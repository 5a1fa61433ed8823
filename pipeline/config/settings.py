"""The configuration of a run: nmt's settings and the corpora. `resolve` writes it, each stage reads its sections."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError, model_validator

from nmt.common.files import read_yaml
from nmt.config import (
    AveragingSettings,
    BinningSettings,
    Few,
    FilterSettings,
    InputError,
    ModelSettings,
    SearchSettings,
    Settings,
    SubwordSettings,
    TokenizerSettings,
    TrainingSettings,
)
from pipeline.config.paths import CONFIG

Pair = Literal["en-de", "en-fr", "en-tree"]
Section = TypeVar("Section", bound=Settings)
Url = Annotated[str, Field(pattern=r"^(https?://[^/\s]+/|file:)\S+$")]
"""http, https, or file: with a path relative to the repository."""
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Md5 = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]

SECTIONS = ("preparation", "subwords", "binning", "model", "training", "averaging", "search")
"""The sections that rows.yaml sets and that decide results."""
LEAST_VOCABULARY = {"bpe": 4 + 2, "wordpieces": 4 + 256 + 2}
"""Minimum vocabulary sizes: the specials, the 256 bytes of word pieces, and two subwords of the text (BPE: a character
inside and at the end of a word; word pieces: a character and the marker of a space)."""


class RunSettings(Settings):
    """What the user asked for; names runs and reports."""

    row: str
    pair: Pair
    corpus: Name
    seed: Annotated[int, Field(ge=0, lt=2**64)]


class ArchiveEntry(Settings):
    urls: Annotated[list[Url], Field(min_length=1)]  # the original and its mirrors, tried in order
    bytes: Annotated[int, Field(ge=1)] | None = None
    sha256: Sha256 | None = None
    md5: Md5 | None = None
    licence: str
    source: str  # the corpus's page


class ArchiveSettings(ArchiveEntry):
    name: Name


class MemberSettings(Settings):
    """One side of a parallel text: a member of an archive, or a plain local file."""

    archive: Name | None = None
    member: str | None = None
    path: str | None = None  # relative to the repository, or absolute
    sha256: Sha256 | None = None  # of the plain text, and so is md5
    md5: Md5 | None = None
    lines: Annotated[int, Field(ge=1)] | None = None  # or trees: holds a file of unknown bytes to their number

    @model_validator(mode="after")
    def _in_archive_or_file(self) -> MemberSettings:
        in_archive = self.archive is not None and self.member is not None and self.path is None
        local = self.path is not None and self.archive is None and self.member is None
        if not (in_archive or (local and (self.sha256 is not None or self.lines is not None))):
            raise ValueError("give archive and member, or path and sha256 (or lines)")
        return self

    @property
    def place(self) -> str:
        """Return where the text is, in words: equal for two sides of one file, whatever checks each of them has."""
        return self.path or f"{self.member} of the archive {self.archive}"


class ParallelSettings(Settings):
    name: Name
    source: MemberSettings
    target: MemberSettings


class DataSettings(Settings):
    """The corpora of one language pair. A text of trees is one treebank, given as both sides."""

    source: str
    target: str
    archives: list[ArchiveSettings]
    train: Annotated[list[ParallelSettings], Field(min_length=1)]
    valid: ParallelSettings
    test: ParallelSettings

    @property
    def texts(self) -> list[tuple[str, ParallelSettings]]:
        """Return every text with its role: train, valid or test."""
        return [*(("train", text) for text in self.train), ("valid", self.valid), ("test", self.test)]

    @model_validator(mode="after")
    def _one_treebank(self) -> DataSettings:
        for role, text in self.texts if self.target == "tree" else ():
            if text.source.place != text.target.place:
                raise ValueError(
                    f"{role} text {text.name} has {text.source.place} as source and {text.target.place} as target, but "
                    "sentences and trees are made of one treebank: give it as both"
                )
        return self


class PreparationSettings(Settings):
    tokenizer: TokenizerSettings
    filters: FilterSettings


class AttentionSettings(Settings):
    sentences: Few  # pairs of the validation set that the report's page shows


class VersionSettings(Settings):
    """Versions of the libraries that decide the bytes of stages' outputs."""

    sacremoses: str
    subword_nmt: str
    sentencepiece: str
    sacrebleu: str


class Configuration(Settings):
    """Everything that a run depends on: the sections of results/config.yaml."""

    run: RunSettings
    data: DataSettings
    preparation: PreparationSettings
    subwords: SubwordSettings
    binning: BinningSettings
    model: ModelSettings
    training: TrainingSettings
    averaging: AveragingSettings
    search: SearchSettings
    attention: AttentionSettings
    versions: VersionSettings

    @property
    def checkpoints(self) -> int:
        """Return how many checkpoints a complete training leaves for averaging."""
        return min(self.training.updates // self.training.checkpoint_every, self.training.keep_checkpoints)

    @model_validator(mode="after")
    def _accepted_by_later_stages(self) -> Configuration:
        """Refuse now, from the settings alone, what a later stage would refuse hours later."""
        filters, longest, positions = self.preparation.filters, self.binning.max_length, self.model.max_positions
        vocabulary, least = self.subwords.vocabulary, LEAST_VOCABULARY[self.subwords.kind]
        translation = longest + self.search.max_extra
        if filters.min_tokens > filters.max_tokens:
            raise ValueError(
                f"preparation.filters.min_tokens is {filters.min_tokens}, but max_tokens is {filters.max_tokens}, so "
                "no pair would pass: lower preparation.filters.min_tokens or raise preparation.filters.max_tokens"
            )
        if vocabulary is not None and vocabulary < least:
            raise ValueError(
                f"subwords.vocabulary is {vocabulary}, but {self.subwords.kind} needs at least {least}, and more for "
                "most texts: raise it"
            )
        if longest < filters.min_tokens + 1:
            raise ValueError(
                f"binning.max_length is {longest}, but pairs of preparation.filters.min_tokens have at least "
                f"{filters.min_tokens + 1} subwords, the end of the sentence included, so no pair would be kept: raise "
                "binning.max_length or lower preparation.filters.min_tokens"
            )
        if self.model.positions == "learned" and self.training.arithmetic == "portable":
            raise ValueError(
                "training.arithmetic is portable, which cannot train learned positions: set sinusoidal ones"
            )
        if self.model.positions == "learned" and positions < translation:
            raise ValueError(
                f"model.max_positions is {positions}, but a sentence of binning.max_length = {longest} subwords may "
                f"have a translation of search.max_extra = {self.search.max_extra} more: raise "
                f"model.max_positions to {translation}, or lower binning.max_length or search.max_extra"
            )
        if self.averaging.last > self.training.keep_checkpoints:
            raise ValueError(
                f"averaging.last is {self.averaging.last}, but training.keep_checkpoints keeps only "
                f"{self.training.keep_checkpoints}: raise training.keep_checkpoints or lower averaging.last"
            )
        return self


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
    try:
        return section.model_validate(plain_section(name, path))
    except ValidationError as error:
        raise InputError(f"{path}, section `{name}`: {error.errors()[0]['msg']}; resolve it again") from error


def check_versions(*libraries: str) -> None:
    """Raise InputError if the installed version of a library is not the one in the resolved configuration."""
    resolved = plain_section("versions")
    for library in libraries:
        installed = importlib.metadata.version(library.replace("_", "-"))
        if installed != resolved[library]:
            raise InputError(
                f"{library} {installed} is installed, but the run was resolved with {resolved[library]}: install the "
                "locked versions with `make setup`, or resolve again with `dvc repro --force --single-item resolve`"
            )
