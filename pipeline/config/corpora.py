"""What the user asks for, and the corpora of a run."""

import re
from collections.abc import Callable
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, WrapSerializer, model_validator

from nmt.schema import LANGUAGE, TREE, Few, Settings


def sides(pair: str) -> tuple[str, str]:
    source, _, target = pair.partition("-")
    return source, target


def other_direction(pair: str) -> str:
    return "-".join(reversed(sides(pair)))


def valid_pair(pair: str) -> str:
    """Return a pair; raise ValueError, with the rule, for what is none."""
    source, target = sides(pair)
    codes = [source, *([] if target == TREE else [target])]
    if source == target or not all(re.fullmatch(LANGUAGE, code) for code in codes):
        raise ValueError(
            "a pair is two different ISO 639 codes, as `de-en` or `en-sr_Latn`, or one code and tree, as `en-tree`"
        )
    return pair


Pair = Annotated[str, AfterValidator(valid_pair)]
Url = Annotated[str, Field(pattern=r"^(https?://[^/\s]+/|file:)\S+$")]
"""http, https, or file: with a path relative to the repository."""
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Md5 = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
Name = Annotated[str, Field(pattern=f"^{NAME}$")]


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
    sha256: Sha256 | None = None  # of an archive's plain text, of a local file as it is
    md5: Md5 | None = None  # of an archive's plain text
    lines: Annotated[int, Field(ge=1)] | None = None  # the expected number; checked when no checksum is known

    @model_validator(mode="after")
    def _in_archive_or_file(self) -> Self:
        in_archive = self.archive is not None and self.member is not None and self.path is None
        local = self.path is not None and self.archive is None and self.member is None and self.md5 is None
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


class TrainingText(ParallelSettings):
    weight: Annotated[Few, Field(exclude_if=lambda value: value == 1)] = 1  # how often an epoch has the text


def _one_or_several(texts: list[ParallelSettings], dump: Callable[[Any], Any]) -> Any:
    content = dump(texts)
    return content[0] if len(content) == 1 else content


TestSets = Annotated[
    list[ParallelSettings],
    Field(min_length=1),
    BeforeValidator(lambda content: content if isinstance(content, list) else [content]),
    WrapSerializer(_one_or_several),
]
"""A text, or a list of them, in files too. The first is the headline."""


class DataSettings(Settings):
    """The corpora of one language pair. A text of trees is one treebank, given as both sides."""

    source: str
    target: str
    archives: list[ArchiveSettings]
    train: Annotated[list[TrainingText], Field(min_length=1)]
    valid: ParallelSettings
    test: TestSets

    @property
    def texts(self) -> list[tuple[str, ParallelSettings]]:
        """Return every text with its role: train, valid or test."""
        tests = (("test", text) for text in self.test)
        return [*(("train", text) for text in self.train), ("valid", self.valid), *tests]

    @property
    def held_out(self) -> dict[str, ParallelSettings]:
        """Return what is not for training: `valid`, `test`, and each further test set, as `test.medical`."""
        first, *others = self.test
        return {"valid": self.valid, "test": first, **{f"test.{text.name}": text for text in others}}

    @model_validator(mode="after")
    def _one_treebank(self) -> Self:
        for role, text in self.texts if self.target == TREE else ():
            if text.source.place != text.target.place:
                places = f"{text.source.place} as source and {text.target.place} as target"
                raise ValueError(f"{role} text {text.name} has {places}: give one treebank as both")
        return self
