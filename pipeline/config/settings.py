"""The whole run: nmt's settings plus where the text comes from. `resolve` writes it, each stage reads its sections."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeVar

import yaml
from pydantic import Field, ValidationError, model_validator

from nmt.config import (
    AveragingSettings,
    BinningSettings,
    FilterSettings,
    InputError,
    ModelSettings,
    SearchSettings,
    Settings,
    SubwordSettings,
    TokenizerSettings,
    TrainingSettings,
)

CONFIG = Path("results/config.yaml")

REPACKED = "repacked:"
"""Stands before an address that has the same members in an archive of other bytes, with a checksum of its own."""

Section = TypeVar("Section", bound=Settings)
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Md5 = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]

LEAST_VOCABULARY = {"bpe": 4 + 2, "wordpieces": 4 + 256 + 2}
"""The fewest subwords that any text can be learned with: specials, the 256 bytes of word pieces, and two of the text
(BPE: a character inside and at the end of a word; word pieces: a character and the mark of a space)."""


class RunSettings(Settings):
    """What the user asked for, for names of runs and reports."""

    row: str
    pair: Literal["en-de", "en-fr"]
    corpus: Name
    seed: Annotated[int, Field(ge=0, lt=2**64)]

    @property
    def source(self) -> str:
        """The language translated from."""
        return self.pair.split("-")[0]

    @property
    def target(self) -> str:
        """The language translated into."""
        return self.pair.split("-")[1]


class ArchiveSettings(Settings):
    """One file to download. Where no sha256 is on record, the first download's is recorded and held to."""

    name: Name
    urls: Annotated[list[str], Field(min_length=1)]
    """The original and its mirrors, tried in order."""
    bytes: Annotated[int, Field(ge=1)] | None
    sha256: Sha256 | None
    md5: Md5 | None
    licence: str
    source: str
    """Where the corpus is described."""


class MemberSettings(Settings):
    """One side of a parallel text: a member of an archive, or a plain local file."""

    archive: Name | None = None
    member: str | None = None
    path: str | None = None
    """Relative to the repository, or absolute."""
    sha256: Sha256 | None = None
    md5: Md5 | None = None
    """Of the plain text, where one is on record."""

    @model_validator(mode="after")
    def _one_place(self) -> MemberSettings:
        in_archive = self.archive is not None and self.member is not None and self.path is None
        local = self.path is not None and self.sha256 is not None and self.archive is None and self.member is None
        if not (in_archive or local):
            raise ValueError("give archive and member, or path and sha256")
        return self


class ParallelSettings(Settings):
    """A named parallel text."""

    name: Name
    source: MemberSettings
    target: MemberSettings


class DataSettings(Settings):
    """The corpora of one pair, fully spelled out."""

    source: str
    target: str
    archives: list[ArchiveSettings]
    train: Annotated[list[ParallelSettings], Field(min_length=1)]
    valid: ParallelSettings
    test: ParallelSettings


class PreparationSettings(Settings):
    """From raw to tokenised, filtered text."""

    tokenizer: TokenizerSettings
    filters: FilterSettings


class VersionSettings(Settings):
    """The libraries whose version decides the bytes of a stage's outputs."""

    sacremoses: str
    subword_nmt: str
    sentencepiece: str
    sacrebleu: str


class Configuration(Settings):
    """Everything a run depends on. The sections of results/config.yaml."""

    run: RunSettings
    data: DataSettings
    preparation: PreparationSettings
    subwords: SubwordSettings
    binning: BinningSettings
    model: ModelSettings
    training: TrainingSettings
    averaging: AveragingSettings
    search: SearchSettings
    versions: VersionSettings

    @property
    def checkpoints(self) -> int:
        """How many checkpoints a training of all updates leaves to average."""
        return min(self.training.updates // self.training.checkpoint_every, self.training.keep_checkpoints)

    # What a later stage would refuse by the settings alone, hours later.

    @model_validator(mode="after")
    def _filters_keep_pairs(self) -> Configuration:
        filters = self.preparation.filters
        if filters.min_tokens > filters.max_tokens:
            raise ValueError(
                f"preparation.filters.min_tokens is {filters.min_tokens}, but max_tokens is {filters.max_tokens}, so "
                "no pair would pass: lower the first or raise the second"
            )
        return self

    @model_validator(mode="after")
    def _vocabulary_holds_text(self) -> Configuration:
        vocabulary, least = self.subwords.vocabulary, LEAST_VOCABULARY[self.subwords.kind]
        if vocabulary is not None and vocabulary < least:
            raise ValueError(
                f"subwords.vocabulary is {vocabulary}, but {self.subwords.kind} needs at least {least}, and more for "
                "most texts: raise it"
            )
        return self

    @model_validator(mode="after")
    def _bins_hold_pairs(self) -> Configuration:
        longest, shortest = self.binning.max_length, self.preparation.filters.min_tokens + 1
        if longest < shortest:
            raise ValueError(
                f"binning.max_length is {longest}, but pairs of preparation.filters.min_tokens have at least "
                f"{shortest} subwords, the end of the sentence included, so no pair would be kept: raise the first or "
                "lower the second"
            )
        return self

    @model_validator(mode="after")
    def _enough_positions(self) -> Configuration:
        if self.model.positions != "learned":
            return self
        positions, longest, extra = self.model.max_positions, self.binning.max_length, self.search.max_extra
        if positions < longest:
            raise ValueError(
                f"model.max_positions is {positions}, but training sentences have up to binning.max_length = {longest} "
                "subwords: raise the first or lower the second"
            )
        if positions < longest + extra:
            raise ValueError(
                f"model.max_positions is {positions}, but a sentence of binning.max_length = {longest} subwords may "
                f"have a translation of search.max_extra = {extra} more: raise the first to {longest + extra}, or "
                "lower the others"
            )
        return self

    @model_validator(mode="after")
    def _enough_checkpoints(self) -> Configuration:
        if self.averaging.last > self.training.keep_checkpoints:
            raise ValueError(
                f"averaging.last is {self.averaging.last}, but training.keep_checkpoints keeps only "
                f"{self.training.keep_checkpoints}: raise the second or lower the first"
            )
        return self


def load_section(name: str, section: type[Section], path: Path = CONFIG) -> Section:
    """The section `name` of the resolved configuration; raises InputError where it is missing or wrong."""
    if not path.exists():
        raise InputError(f"{path} is missing: run `dvc repro`, or `python -m pipeline resolve`, first")
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or name not in content:
        raise InputError(f"{path} has no section `{name}`: run `python -m pipeline resolve` again")
    try:
        return section.model_validate(content[name])
    except ValidationError as error:
        raise InputError(f"{path}, section `{name}`: {error.errors()[0]['msg']}; resolve it again") from error
