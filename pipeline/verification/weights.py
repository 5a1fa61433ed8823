"""The checks of a training: its losses, kept states and checkpoints, parts of it trained again, and the average."""

from __future__ import annotations

import csv
import random
from collections.abc import Sequence
from pathlib import Path

from nmt.common.tensors import WEIGHTS, digest, load_tensors
from nmt.config import AveragingSettings
from nmt.training import chain, checkpoint
from pipeline.common import paths
from pipeline.common.settings import load_section
from pipeline.runs.tables import curve
from pipeline.verification.certificate import Finding, Subject, code
from pipeline.verification.replay import Replay


def curves(subject: Subject) -> Finding:
    """Compare the recorded losses with the chain: of an edited curve the hash is another."""
    tables = [subject.files.results / path.name for path in (paths.CURVES, paths.VALIDATION)]
    if not all(path.exists() for path in tables):
        return Finding("losses", "not here", f"{tables[0]} is missing")
    try:
        return _losses(subject, tables)
    except (csv.Error, KeyError, TypeError, ValueError):
        return Finding("losses", "differs", f"{tables[0]} or {tables[1].name} was edited: it is no table of losses")


def _losses(subject: Subject, tables: Sequence[Path]) -> Finding:
    records = [{"update": update, **values} for path in tables for update, values in curve(path)]
    before = 0
    for link in subject.training.links:
        if chain.losses_hash(records, before, link.update) != link.losses:
            where = f"updates {before:,} to {link.update:,}"
            return Finding("losses", "differs", f"{tables[0]} or {tables[1].name} was edited within {where}")
        before = link.update
    if any(int(record["update"]) > before for record in records):
        return Finding("losses", "differs", f"{tables[0]} or {tables[1].name} goes on after update {before:,}")
    return Finding("losses", "equal", f"{len(records)} records of {tables[0]} and {tables[1].name}")


def states(subject: Subject) -> Finding:
    """Compare the kept states with the chain."""
    if not subject.training.kept:
        return Finding("kept states", "not here", f"{subject.training.folder}/states is empty")
    number, changed = len(subject.training.kept), subject.training.changed_states()
    if changed:
        return Finding("kept states", "differs", "; ".join(changed))
    return Finding("kept states", "equal", f"{number} states in {subject.training.folder}/states")


def retrained(subject: Subject, corpus: Finding, named: Sequence[str], share: float) -> Finding:
    """Train the named intervals again, or random ones that cover a share of the updates."""
    if corpus.status in {"differs", "not here"}:
        return Finding("training", "not here", f"it cannot be trained again without its corpus: {corpus.detail}")
    training = subject.training
    chosen = [training.named(text) for text in named]
    if not chosen and training.starts():
        chosen = training.choose(share, random.SystemRandom())
    if not chosen:
        return Finding("training", "not here", "no state is left to begin from")
    replays = list(map(training.retrain, chosen))
    return _outcome(subject, replays)


def _outcome(subject: Subject, replays: Sequence[Replay]) -> Finding:
    for replay in sorted(replays, key=lambda replay: not replay.exact):
        if replay.parted is not None:
            facts = list(replay.conditions)
            if code(subject).status == "differs":
                facts.insert(0, "the training's code differs")
            if not replay.exact:
                facts.append("without training.deterministic GPUs add in no fixed order, so this shows nothing")
            why = "; ".join(facts) or (
                "settings, data, code and conditions are the recorded ones, so the recorded weights are not what "
                "they give"
            )
            return Finding("training", "differs" if replay.exact else "not here", f"{replay.parted}: {why}")
    own = subject.training.links[-1].update - subject.training.begin
    updates = sum(replay.interval.end - replay.interval.start for replay in replays)
    where = ", ".join(str(replay.interval) for replay in replays)
    seconds = sum(replay.seconds for replay in replays)
    share = f"{updates:,} of {own:,} updates ({updates / own:.1%}: {where})"
    return Finding("training", "recomputed", f"{share} in {seconds:.1f} s of training")


def checkpoints(subject: Subject) -> Finding:
    """Compare the checkpoints for averaging with the chain."""
    weights = {link.update: link.weights for link in subject.training.links}
    found = [
        path
        for path in checkpoint.checkpoints(subject.files.checkpoints)
        if checkpoint.update_of(path) in subject.certificate["averaged"]
    ]
    for path in found:
        if digest(load_tensors(path)) != weights.get(checkpoint.update_of(path)):
            return Finding("checkpoints", "differs", f"{path} does not have the weights that the chain recorded")
    if len(found) < len(subject.certificate["averaged"]):
        missing = len(subject.certificate["averaged"]) - len(found)
        return Finding("checkpoints", "not here", f"{missing} of those averaged are not in {subject.files.checkpoints}")
    return Finding("checkpoints", "equal", f"{len(found)} in {subject.files.checkpoints}")


def averageable(subject: Subject) -> list[int]:
    """Return the updates whose checkpoints an average may have: the newest that training leaves; of a fork, any."""
    updates, training = [link.update for link in subject.training.links], subject.training.job["training"]
    if subject.training.begin:  # Its run's checkpoints may have been at other updates.
        return updates
    last: int = training["keep_checkpoints"]
    if subject.config.exists():
        last = min(last, load_section("averaging", AveragingSettings, subject.config).last)
    return [update for update in updates if update % training["checkpoint_every"] == 0][-last:]


def averaged(subject: Subject) -> Finding:
    """Average the checkpoints again."""
    recorded = subject.certificate
    if other := sorted({*recorded["averaged"]} - {*averageable(subject)}):
        return Finding("average", "differs", f"update {other[0]:,} is none of the last checkpoints, but was averaged")
    if not recorded["averaged"] and recorded["average"] != recorded["last"]:
        return Finding("average", "differs", "no checkpoint was averaged, but the model is not the last weights")
    here = subject.files.average / WEIGHTS
    if here.exists() and digest(load_tensors(here)) != subject.certificate["average"]:
        return Finding("average", "differs", f"{here} was changed: it does not have the certificate's hash")
    chosen = [
        checkpoint.checkpoint_path(subject.files.checkpoints, update) for update in subject.certificate["averaged"]
    ]
    if not chosen or not all(path.exists() for path in chosen):
        same = f"{here} has the certificate's hash"
        return Finding("average", *(("equal", same) if here.exists() else ("not here", f"{here} is missing")))
    if digest(checkpoint.average(chosen)) != subject.certificate["average"]:
        return Finding("average", "differs", "the checkpoints' mean is not the averaged model: others were averaged")
    return Finding("average", "recomputed", f"the mean of {len(chosen)} checkpoints")


def last(subject: Subject) -> Finding:
    """Compare the last weights with the end of the chain."""
    head = subject.training.links[-1]
    if subject.certificate["last"] != head.weights:
        return Finding("last weights", "differs", "the model of the last weights is not the end of the chain")
    path = subject.files.last / WEIGHTS
    if not path.exists():
        return Finding("last weights", "not here", f"{path} is missing")
    if digest(load_tensors(path)) != head.weights:
        return Finding("last weights", "differs", f"{path} was changed: it is not the end of the chain")
    return Finding("last weights", "equal", f"{path} is the end of the chain")
