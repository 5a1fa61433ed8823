"""Run the stages of a certified run again, in a folder that holds certified files alone; compare every step."""

import importlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any

import yaml

from nmt import flops
from nmt.common.files import link_or_copy, scratch_folder, write_json
from nmt.common.tensors import digest, load_tensors
from nmt.errors import InputError
from nmt.model_settings import ModelSettings
from nmt.training import chain, checkpoint
from nmt.training.history import perplexity
from nmt.training.settings import Job, StartSettings, TrainingSettings
from pipeline.config import graph, paths
from pipeline.config.corpora import DataSettings
from pipeline.config.paths import read_json, state_root
from pipeline.config.rows import flat, merge
from pipeline.config.sections import load_section, plain_section
from pipeline.data import parent_folder
from pipeline.stages import certify, resolve
from pipeline.trainings import identity
from pipeline.verify import certificate as certificates
from pipeline.verify.certificate import Certificate, Finding, difference
from pipeline.verify.replay import Training

STATED = (
    *("updates", "params", "vocabulary", "precision", "valid_loss", "valid_ppl"),
    *("pairs", "source_tokens", "target_tokens", "padding", "flops_counted"),
)
"""Keys of training.json that are no times. Only a whole training can check those of the second line."""


class Remake:
    """A folder like the repository's, in which each stage finds certified files alone.

    A file that was made again stays if it has its certified hash; else the one that is here is taken, if it has.
    """

    def __init__(self, certificate: Certificate, folder: Path) -> None:
        self.certificate, self.folder = certificate, folder
        self.stages = graph.stages()
        self.recorded = {name: certificate.under(stage.outs) for name, stage in self.stages.items()}
        """What the certificate has of each stage: hashes of files by path; of `resolve` the settings by key."""
        self.recorded["resolve"] = dict(flat(certificate.settings))
        self._link(Path(), {Path(out) for stage in self.stages.values() for out in stage.outs})
        # `precision: auto` may be another one on this machine.
        training = certificate.settings.get("training") or {}
        pinned = {"training": {key: training[key] for key in ("precision",) if key in training}}
        params = merge(certificate.params, {"overrides": pinned})
        (folder / paths.PARAMS).write_text(yaml.safe_dump(params), encoding="utf-8")

    def _link(self, within: Path, outs: set[Path]) -> None:
        """Link what no stage makes."""
        for path in within.iterdir():
            if any(path in out.parents for out in outs):
                (self.folder / path).mkdir()
                self._link(path, outs)
            elif path not in outs and path != paths.PARAMS and not path.name.startswith("."):
                (self.folder / path).symlink_to(path.resolve())

    def hashes(self, name: str, root: Path = Path()) -> dict[str, Any]:
        """Return what a stage made in the repository `root`: hashes by path; of `resolve` the settings by key."""
        if name != "resolve":
            return certify.hashes(self.stages[name].outs, root)
        if not (root / paths.CONFIG).exists():
            return {}
        return dict(flat({name: plain_section(name, root / paths.CONFIG) for name in certify.CERTIFIED}))

    def take(self, name: str) -> dict[str, Any]:
        """Link the files of a stage here that have their certified hashes into the folder; return the hashes of all."""
        here, recorded = self.hashes(name), self.recorded[name]
        for path in here if name != "resolve" else ():
            target = self.folder / path
            if here[path] == recorded.get(path) and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                link_or_copy(path, target)
        return here

    def run(self, name: str) -> Finding:
        """Run a stage again; compare what it makes, and what is here, with the certificate."""
        recorded, needed = self.recorded[name], self.certificate.under(self.stages[name].deps)
        again: dict[str, Any] = {}
        problem = next((f"{path} is not here" for path in needed if not (self.folder / path).exists()), None)
        if problem is None:
            # As in DVC's experiments: relative paths that lead out of the repository begin in the original.
            os.environ["DVC_ROOT"] = str(Path.cwd())
            try:
                with chdir(self.folder), redirect_stdout(sys.stderr):  # Where DVC starts a stage, too.
                    importlib.import_module(f"pipeline.stages.{name}").run()
                again = self.hashes(name, self.folder)
            except Exception as error:  # Whatever tampering led to: other steps can still be checked.
                problem = f"it cannot run again: {type(error).__name__}: {error}"
            finally:
                del os.environ["DVC_ROOT"]
        for path in again if name != "resolve" else ():
            if again[path] != recorded.get(path):
                (self.folder / path).unlink()
        here = self.take(name)
        if here and (other := difference(here, recorded)):
            return Finding(name, "differs", f"{other}: it was changed")
        if problem is not None:
            return Finding(name, "inconclusive", problem)
        if other := difference(again, recorded):
            return Finding(name, "differs", f"made again, {other}")
        if name == "download":
            archives = load_section("data", DataSettings, self.folder / paths.CONFIG).archives
            if unknown := [archive.name for archive in archives if archive.sha256 is None and archive.md5 is None]:
                return Finding(name, "inconclusive", f"no checksum of {', '.join(unknown)} was published")
        what = "settings" if name == "resolve" else "files"
        return Finding(name, "recomputed", f"{len(recorded)} {what} of {', '.join(self.stages[name].outs)}")


def findings(path: Path, updates: Sequence[str], share: float) -> Iterator[Finding]:
    """Yield the finding of every step, in the order of the pipeline.

    `updates`: the intervals to train again, as A:B; none: random ones that cover `share` of the updates. Raises
    InputError where the certificate is none, or where an interval cannot be trained again.
    """
    certificate = certificates.load(path)
    if not 0 < share <= 1:
        raise InputError(f"--share is {share:g}: it must be above 0 and at most 1")
    of_results = certificates.load(paths.CERTIFICATE) if paths.CERTIFICATE.exists() else certificate
    if path != paths.CERTIFICATE and (other := difference(of_results.params, certificate.params)):
        raise InputError(f"results/ is of another run ({other}): check this certificate in a fresh clone")
    os.environ.pop("WMT_NODES", None)  # Training again is this machine's: `wmt join` would not find it.
    training = Training(certificate.training)
    named = [training.named(text) for text in updates]
    yield certificates.sealed(path)
    yield tried("code", certificates.code, certificate)
    if start := certificate.training.job["training"].get("start_from"):
        yield tried("parent", same_parent, StartSettings.model_validate(start))
    with scratch_folder(state_root().resolve() / "verify") as folder:
        again = Remake(certificate, folder)
        for name in graph.upstream("certify", again.stages)[:-1]:
            if name != "train":
                yield tried(name, again.run, name)
                continue
            yield tried("chain", chained, certificate, folder)
            if again.hashes(name):
                yield tried(name, trained, certificate, again)
                yield tried("states", training.states)
                named = [training.named(text) for text in updates]  # damaged states are no longer among the kept
                yield tried("intervals", training.retrained, folder / paths.BINNED, named, share)
            else:
                yield tried("intervals", training.retrained, folder / paths.BINNED, named, share, folder)
                yield tried(name, trained_again, certificate, again)
    if path == paths.CERTIFICATE and Path("dvc.lock").exists():
        yield tried("dvc.lock", locked)


def tried(step: str, check: Callable[..., Finding], *arguments: object) -> Finding:
    """Return a check's finding. If the check itself fails, its step is inconclusive and the other steps go on."""
    try:
        return check(*arguments)
    except Exception as error:
        return Finding(step, "inconclusive", f"{type(error).__name__}: {error}")


def same_parent(start: StartSettings) -> Finding:
    """Compare the hash of the weights that the training started from; how these were trained is another run's."""
    detail = f"{parent_folder.find(start)}, whose own training is not checked: {start.weights}"
    return Finding("parent", "equal", detail)


def chained(certificate: Certificate, folder: Path) -> Finding:
    """Check that the chain follows from itself, and has the resolved settings, the corpus and the end of the run."""
    training, links = certificate.training, certificate.training.links
    binned = certificate.under([str(paths.BINNED)])
    corpus = {path: sha256 for path, sha256 in binned.items() if path.endswith(".arrow")}
    resolved = folder / paths.CONFIG  # The settings as they were resolved again.
    settings = load_section("training", TrainingSettings, resolved)
    job = {**identity.job_of(load_section("model", ModelSettings, resolved), settings, folder), "corpus": None}
    if (link := chain.broken(links)) is not None:
        problem = f"it breaks at update {link.update:,}: a link was changed"
    elif other := difference(corpus, {str(paths.BINNED / name): sha256 for name, sha256 in training.data.items()}):
        problem = f"of another corpus: {other}"
    elif other := difference(dict(flat(job)), dict(flat(training.job))):
        problem = f"of other settings: {other}"
    elif other := early(certificate, settings, Path()):
        problem = other
    else:
        return Finding("chain", "recomputed", f"{len(links):,} links, the last at update {links[-1].update:,}")
    return Finding("chain", "differs", problem)


def early(certificate: Certificate, settings: TrainingSettings, root: Path) -> str:
    """Return a sentence where the chain ends too early: before the last update, and not by patience.

    Only the table of validations tells whether patience ended it: where `root` has none, nothing is said.
    """
    last, table = certificate.training.links[-1].update, root / paths.VALIDATION
    if last == settings.updates:
        return ""
    if settings.patience is not None:
        if not table.exists():
            return ""
        rows = paths.read_table(table)
        losses = [math.inf, *(row["valid_loss"] for row in rows if row["update"] % settings.validate_every == 0)]
        if len(losses) - 1 - losses.index(min(losses)) >= settings.patience:  # as `Attempt.train` counts
            return ""
    return f"it ends at update {last:,}, the training at update {settings.updates:,}"


def trained(certificate: Certificate, again: Remake) -> Finding:
    """Compare the training's outputs with the certificate, and what they hold with the chain."""
    here, recorded = again.take("train"), again.recorded["train"]
    if problem := difference(here, recorded) or next(contradictions(certificate), None):
        return Finding("train", "differs", problem)
    return Finding("train", "equal", f"{len(recorded)} files, whose losses and weights are those of the chain")


def trained_again(certificate: Certificate, again: Remake) -> Finding:
    """Compare the outputs of a training that was trained again as a whole, but times: those are the certificate's."""
    timed = (paths.CURVES, paths.VALIDATION, paths.CHAIN)
    root, summary = again.folder, again.folder / paths.TRAINING
    if not summary.exists():
        return Finding("train", "inconclusive", "nothing that training made is here")
    of_training, measured = read_json(summary), certificate.measured
    numbers = difference(*({key: content.get(key) for key in STATED} for content in (of_training, measured)))
    write_json(summary, measured)
    made, recorded = (
        {path: hashed for path, hashed in files.items() if Path(path) not in timed}
        for files in (again.hashes("train", root), again.recorded["train"])
    )
    cut = early(certificate, load_section("training", TrainingSettings, root / paths.CONFIG), root)
    if problem := difference(made, recorded) or cut or (numbers and f"{paths.TRAINING}: {numbers}"):
        return Finding("train", "differs", problem)
    return Finding(
        "train", "recomputed", f"{len(made)} files, the last weights {certificate.training.links[-1].weights}"
    )


def locked() -> Finding:
    """Compare the files of every stage, also the report's, with their hashes in dvc.lock."""
    from dvc.repo import Repo

    with Repo() as repo:
        changed = {name: why for name, why in repo.status().items() if name in graph.stages()}
    entries = [entry for why in changed.values() for entry in why if isinstance(entry, dict)]
    outs = {(path, how) for entry in entries for path, how in entry.get("changed outs", {}).items()}
    outs.discard((str(paths.CONFIG), "deleted"))  # DVC deletes it before `resolve`, which may refuse the settings.
    if problems := "; ".join(sorted(f"{path} is {how}" for path, how in outs)):
        return Finding("dvc.lock", "differs", problems)
    if not resolve.is_current(changed):
        return Finding("dvc.lock", "inconclusive", f"it was changed, or what these stages read: {', '.join(changed)}")
    return Finding("dvc.lock", "equal", "the files of every stage, the report's too, have the hashes in it")


def contradictions(certificate: Certificate) -> Iterator[str]:
    """Yield where the training's outputs contradict the chain."""
    links, outs = certificate.training.links, graph.stages()["train"].outs
    yield from (f"{out} is missing" for out in outs if not certificate.under([out]))
    if read_json(paths.CHAIN) != certificate.training.model_dump():
        yield f"{paths.CHAIN} has another chain than the certificate"
    validations = paths.read_table(paths.VALIDATION)
    records, before = [*paths.read_table(paths.CURVES), *validations], 0
    for link in links:
        if chain.losses_hash(records, before, link.update) != link.losses:
            yield f"{paths.CURVES} or {paths.VALIDATION.name} was edited within updates {before:,} to {link.update:,}"
        before = link.update
    if any(record["update"] > before for record in records):
        yield f"{paths.CURVES} or {paths.VALIDATION.name} goes on after update {before:,}"
    job, stated = Job.model_validate({**certificate.training.job, "corpus": ""}), read_json(paths.TRAINING)
    known = {
        "updates": before,
        "params": flops.parameters(job.model, job.vocabulary, job.target_vocabulary),
        "vocabulary": job.vocabulary,
        "precision": job.training.precision,
        "valid_loss": validations[-1]["valid_loss"],
        "valid_ppl": perplexity(validations[-1]["valid_loss"]),
    }
    if other := difference(stated, certificate.measured) or difference({key: stated.get(key) for key in known}, known):
        yield f"{paths.TRAINING}: {other}"
    weights = {checkpoint.checkpoint_path(paths.CHECKPOINTS, link.update): link.weights for link in links}
    weights[paths.CHECKPOINTS / "last.safetensors"] = links[-1].weights
    for path in (kept := sorted(paths.CHECKPOINTS.iterdir())):
        if digest(load_tensors(path)) != weights.get(path):
            yield f"{path} does not have the weights that the chain recorded"
    training = certificate.training.job["training"]
    every = training["checkpoint_every"]
    for update in range(every, before + 1, every)[-training["keep_checkpoints"] :]:
        if checkpoint.checkpoint_path(paths.CHECKPOINTS, update) not in kept:
            yield f"the checkpoint of update {update:,} is missing, so others were averaged"


def verdict(steps_found: Sequence[Finding]) -> tuple[str, int]:
    """Return a sentence on all findings, and the exit status."""
    for status, sentence, code in (
        ("differs", "not verified, these differ", 1),
        ("inconclusive", "verified, but for what is inconclusive", 2),
    ):
        if steps := [finding.step for finding in steps_found if finding.status == status]:
            return f"{sentence}: {', '.join(steps)}", code
    return "verified", 0
