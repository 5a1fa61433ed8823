"""A run's certificate, what the check of a step found, and the checks that need no stage: its seal and the code."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field

from nmt.errors import explained
from nmt.training.chain import Link
from nmt.training.settings import Job
from pipeline.config import catalogs, graph
from pipeline.config.git import git
from pipeline.config.paths import LOCAL, read_json
from pipeline.stages import certify
from pipeline.trainings.identity import code_digest

Status = Literal["recomputed", "equal", "noted", "differs", "inconclusive"]
"""recomputed: made again, same bytes; equal: same hash; noted: other code, perhaps the same bits; differs: changed;
inconclusive: nothing to compare with."""
HELP = "run `dvc repro` to make it, or name a certificate with --certificate"
DOCUMENTS = (":!*/README.md", ":!*.ipynb")  # As git leaves them out. Jupyter changes the tour when it is opened.


@dataclass(frozen=True)
class Finding:
    """A step of a run, and how it compares with the certificate."""

    step: str
    status: Status
    detail: str

    def __str__(self) -> str:
        return f"{self.step:14} {self.status:12} {self.detail}"


def _valid_job(job: dict[str, Any]) -> dict[str, Any]:
    Job.model_validate({**job, "corpus": ""})
    return job


class ChainOfRun(BaseModel, extra="forbid"):
    """The content of results/chain.json: what decided the weights, and the hashes of the training."""

    state: Annotated[str, Field(pattern=r"^\w[\w.-]*$")]
    job: Annotated[dict[str, Any], AfterValidator(_valid_job)]
    data: dict[str, str]
    code: str
    links: Annotated[list[Link], Field(min_length=1)]

    @property
    def portable(self) -> bool:
        """Whether the weights follow from settings and text alone."""
        return bool(self.job["training"].get("arithmetic") == "portable")


class Certificate(BaseModel, extra="forbid"):
    """The content of results/certificate.json (pipeline/stages/certify.py)."""

    params: dict[str, Any]
    settings: dict[str, dict[str, Any]]
    versions: dict[str, str]
    training: ChainOfRun
    measured: dict[str, Any]  # the content of results/training.json: its times cannot be measured again
    files: dict[str, str]
    seal: str

    def under(self, paths: Iterable[str]) -> dict[str, str]:
        """Return the hashes of files that are one of the paths, or in a folder that is."""
        folders = tuple(f"{path}/" for path in paths)
        return {name: digest for name, digest in self.files.items() if f"{name}/".startswith(folders)}


def load(path: Path) -> Certificate:
    """Return a certificate; raise InputError for a file that is none."""
    with explained(f"{path} is no certificate (", f"): {HELP}"):
        return Certificate.model_validate(read_json(path, remedy=HELP))


def difference(here: Mapping[str, Any], there: Mapping[str, Any]) -> str:
    """Return the first entry that differs, and how many others do; empty where all are equal."""
    changed = [key for key in {**here, **there} if here.get(key) != there.get(key)]
    if not changed:
        return ""
    first, more = changed[0], f"; and {len(changed) - 1:,} more" if changed[1:] else ""
    actual, recorded = (str(side.get(first, "missing"))[:40] for side in (here, there))
    return f"{first} is {actual}, in the certificate {recorded}{more}"


def sealed(path: Path) -> Finding:
    content = read_json(path)
    if certify.seal({key: value for key, value in content.items() if key != "seal"}) != content["seal"]:
        return Finding("certificate", "differs", f"{path} was edited: its hash is not that of its content")
    if strange := [name for name in content["files"] if not graph.made_by(name, graph.stages())]:
        return Finding("certificate", "differs", f"no stage makes {', '.join(strange)}")
    return Finding("certificate", "recomputed", f"{len(content['files'])} files, hash {content['seal'][:12]}")


def code(certificate: Certificate) -> Finding:
    """Compare the modules that decide the weights; ask git whether the code that runs here is committed."""
    was, here = certificate.training.code, code_digest(certificate.training.job)
    detail = f"the modules that decide the weights, {here}"
    if was != here:
        detail = f"the modules that decide the weights had the hash {was}, here {here}"
        if not certificate.training.portable:
            return Finding("code", "differs", detail)
    recorded = ((name, was, version(name)) for name, was in certificate.versions.items() if name != "python")
    others = [f"{name} was {was}, here {now}" for name, was, now in recorded if was != now]
    # All code: `wmt verify` itself is of many modules. Other catalogs decide nothing, nor do documents.
    read = map(str, (LOCAL, *catalogs.files(certificate.settings["run"]["corpus"])))
    code = ("dvc.yaml", "wmt.py", "nmt", "pipeline", *read, *DOCUMENTS)
    detail = "; ".join([detail, *others])
    if changed := git("status", "--porcelain", "--", *code).decode():
        path = changed.splitlines()[0][3:]
        problem = f"{path} is not committed as it is, so nobody else may have it"
        return Finding("code", "inconclusive", f"{problem}; {detail}")
    return Finding("code", "equal" if was == here else "noted", detail)
