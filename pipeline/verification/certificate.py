"""A run beside its certificate, and the checks of what the training began with: corpus, subwords, settings, code."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from nmt.common.files import read_yaml
from nmt.config import InputError, Job, ModelSettings, SearchSettings, TrainingSettings, first_error
from nmt.training import chain
from pipeline.common import paths
from pipeline.common.settings import RunSettings, load_section
from pipeline.config.rows import flat
from pipeline.runs.record import run_name
from pipeline.stages import certify, train
from pipeline.verification.replay import Training

Status = Literal["recomputed", "equal", "differs", "not here"]
"""Made again with the same result, compared by its hash alone, changed, or absent and so unchecked."""
CORPUS_SECTIONS = ("data", "preparation", "subwords", "binning")
"""Sections of the configuration that decide what is in data/."""
NO_RESULT = ("training.resume_minutes", "training.verify_every", "training.keep_states")
"""Settings that change no result."""


def _of_both_sets(references: dict[str, str]) -> dict[str, str]:
    for role in ("valid", "test"):
        if not any(re.fullmatch(rf"{role}\..+\.\w+", name) for name in references):
            raise ValueError(f"that of the {role} set is missing")
    return references


def _complete(score: dict[str, float | str]) -> dict[str, float | str]:
    key = next(iter(score), "")
    if missing := {key, f"{key}_signature", f"{key}_set"} - score.keys():
        raise ValueError(f"{min(missing)} is missing")
    return score


class _Job(Job):
    corpus: str = ""


class _Training(BaseModel):
    state: Annotated[str, Field(pattern=r"^\w[\w.-]*$")]
    job: _Job
    data: dict[str, str]
    code: str
    links: list[dict[str, Any]]


class _Certificate(BaseModel):
    """What the checks read of a certificate."""

    run: RunSettings
    training: _Training
    subwords: dict[str, str]
    averaged: list[Annotated[int, Field(ge=1)]]
    average: str
    last: str
    search: SearchSettings
    translations: dict[str, str]
    references: Annotated[dict[str, str], AfterValidator(_of_both_sets)]
    score: Annotated[dict[str, float | str], AfterValidator(_complete)]
    seal: str


@dataclass(frozen=True)
class Finding:
    """A step of a run, and how it compares with the certificate."""

    step: str
    status: Status
    detail: str


@dataclass(frozen=True)
class Files:
    """Where the files of a run are: this repository's, or those of a run's record."""

    results: Path
    average: Path
    last: Path
    checkpoints: Path

    def translation(self, name: str) -> Path:
        """Return the path of a file of translations."""
        return self.results / paths.TRANSLATIONS.name / name


HERE = Files(paths.CONFIG.parent, paths.AVERAGE, paths.LAST, paths.CHECKPOINTS)


class Subject:
    """A run and its certificate. Raises InputError where the two are of different runs."""

    def __init__(self, certificate: Path, files: Files) -> None:
        self.path, self.files = certificate, files
        self.certificate = load(certificate)
        self.training = Training(self.certificate["training"], certificate)
        self.config = files.results / paths.CONFIG.name
        if self.config.exists():
            here, run = load_section("run", RunSettings, self.config).model_dump(), self.certificate["run"]
            if here != run:
                raise InputError(
                    f"{certificate} is the certificate of the run {run_name(run)}, {run['pair']}, but {self.config} is "
                    f"of {run_name(here)}, {here['pair']}: set params.yaml as that run has it, and run `dvc repro`"
                )

    def has_corpus(self) -> bool:
        """Return whether data/ is that of this run, as far as the configurations say."""
        if self.config == paths.CONFIG or not (self.config.exists() and paths.CONFIG.exists()):
            return True
        ours, theirs = read_yaml(paths.CONFIG), read_yaml(self.config)
        return all(ours.get(name) == theirs.get(name) for name in CORPUS_SECTIONS)


def load(path: Path) -> dict[str, Any]:
    """Return a certificate; raise InputError for a file that is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): name a results/certificate.json") from error
    try:
        _Certificate.model_validate(content)
    except ValidationError as error:
        name, _, rule = first_error(error)
        raise InputError(
            f"{path} is no certificate ({name or 'content'}: {rule}): name a results/certificate.json"
        ) from error
    if not content["training"]["links"]:
        raise InputError(f"{path}: its training has no chain of hashes, so nothing can be checked: train again")
    assert isinstance(content, dict)
    return content


def seal(subject: Subject) -> Finding:
    """Check the certificate itself: its hash, and that every link of the chain follows the one before."""
    content = {key: value for key, value in subject.certificate.items() if key != "seal"}
    if certify.seal(content) != subject.certificate["seal"]:
        return Finding("certificate", "differs", f"{subject.path} was edited: its hash is not that of its content")
    if (link := chain.broken(subject.training.links)) is not None:
        return Finding("certificate", "differs", f"the chain breaks at update {link.update:,}: a link was changed")
    links, training = subject.training.links, subject.training.job["training"]
    if training.get("patience") is None and links[-1].update != training["updates"]:
        end = f"the chain ends at update {links[-1].update:,}, the training at update {training['updates']:,}"
        return Finding("certificate", "differs", end)
    return Finding("certificate", "recomputed", f"{len(links):,} links, the last at update {links[-1].update:,}")


def hashes(step: str, recorded: Mapping[str, str], folder: Path, pattern: str) -> Finding:
    """Compare the hashes of a folder's files."""
    if not any(folder.glob(pattern)):
        return Finding(step, "not here", f"{folder} is empty: `dvc repro` makes it")
    here = certify.hashes(folder.glob(pattern))
    if changed := sorted(name for name in recorded.keys() | here.keys() if recorded.get(name) != here.get(name)):
        return Finding(step, "differs", f"{folder}: {', '.join(changed[:3])} differ from the run's")
    return Finding(step, "equal", f"{len(here)} files of {folder}")


def data(subject: Subject, step: str, recorded: Mapping[str, str], folder: Path, pattern: str) -> Finding:
    """Compare the hashes of a folder of data/, which may hold another run's by now."""
    if not subject.has_corpus():
        return Finding(step, "not here", f"{folder} is another run's: set params.yaml as this run has it, `dvc repro`")
    return hashes(step, recorded, folder, pattern)


def settings(subject: Subject) -> Finding:
    """Compare the settings of model, training and search."""
    if not subject.config.exists():
        return Finding("settings", "not here", f"{subject.config} is missing")
    job = subject.certificate["training"]["job"]
    ours = Job(
        model=load_section("model", ModelSettings, subject.config),
        training=load_section("training", TrainingSettings, subject.config),
        corpus="",
        **{key: job[key] for key in ("vocabulary", "target_vocabulary") if key in job},
    ).model_dump(exclude_defaults=True, exclude={"corpus"})
    search = load_section("search", SearchSettings, subject.config).model_dump()
    theirs = dict(flat({**job, "search": subject.certificate["search"]}))
    here = dict(flat({**ours, "search": search}))
    for key in sorted((theirs.keys() | here.keys()) - {*NO_RESULT}):
        if theirs.get(key) != here.get(key):
            return Finding("settings", "differs", f"{key} was {theirs.get(key)}, here {here.get(key)}")
    return Finding("settings", "equal", f"{len(theirs)} of model, training and search")


def code(subject: Subject) -> Finding:
    """Compare the modules that decide the weights."""
    was, here = subject.training.code, train.code_digest()
    if was != here:
        return Finding("code", "differs", f"the modules that decide the weights had the hash {was}, here {here}")
    return Finding("code", "equal", f"the modules that decide the weights, {here}")
