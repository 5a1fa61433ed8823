"""Fork a training: train on from a kept state with settings changed and everything else shared; `wmt fork`."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from nmt.common.files import parse_yaml, read_yaml
from nmt.common.tensors import WEIGHTS, load_tensors
from nmt.config import InputError
from pipeline.common.paths import CERTIFICATE
from pipeline.common.settings import Configuration
from pipeline.config.resolution import read_params, resolve
from pipeline.config.rows import merge
from pipeline.config.scorer import scorer
from pipeline.runs import copies
from pipeline.runs.pipeline_run import Run
from pipeline.runs.record import Record, folder_name, runs_folder
from pipeline.stages import train
from pipeline.verification.certificate import load
from pipeline.verification.replay import Training

CHANGEABLE = ("model", "training", "averaging", "search")
"""Sections whose settings a fork may change. Others would change the text, and with it the order of the sentences."""


def changes(assignments: Sequence[str]) -> dict[str, Any]:
    """Return `section.key=value` assignments as nested settings; raise InputError for one that a fork cannot have."""
    found: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        section, dot, key = name.partition(".")
        if not (equals and dot and key) or section not in CHANGEABLE:
            raise InputError(
                f"-S {assignment}: a fork changes SECTION.KEY=VALUE of {', '.join(CHANGEABLE)}, as "
                "-S training.learning_rate_scale=0.5; for another corpus or seed run `dvc exp run`"
            )
        try:
            found.setdefault(section, {})[key] = parse_yaml(value)
        except yaml.YAMLError as error:
            raise InputError(f"-S {assignment}: `{value}` is not valid YAML: quote or complete it") from error
    return found


def params(record: Record, update: int, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of params.yaml for a fork of a recorded run after an update that it keeps the state of.

    Raises InputError where that state is not kept, was changed, or does not fit the changed settings.
    """
    path = record.results / CERTIFICATE.name
    training = Training(load(path)["training"], path)
    code, here = training.code, train.code_digest()
    if code != here and os.environ.get("WMT_RESUME_ACROSS_CODE") != "1":
        raise InputError(
            f"{record.folder.name} was trained by other code (hash {code}, here {here}), so more than the settings "
            "would differ: check out its commit, or set WMT_RESUME_ACROSS_CODE=1 to fork it all the same"
        )
    if wrong := training.changed_states():
        raise InputError(f"{training.folder}: {'; '.join(wrong)}: fork after another update, or train again")
    if update not in training.kept:
        kept = ", ".join(f"{each:,}" for each in training.kept) or "none: it kept none, or they were freed"
        raise InputError(f"--at is {update}, but states are kept after these updates: {kept} ({training.folder})")
    described, resolved = record.description(), read_yaml(record.config)
    overrides: dict[str, Any] = {}
    for name, value in described["settings"].items():
        _set(overrides, name, value)
    # The copy's params.yaml keeps overrides of today, which the run did not have.
    for section, values in (read_params().get("overrides") or {}).items():
        for key in values or ():
            overrides.setdefault(section, {}).setdefault(key, resolved[section][key])
    start = {"update": update, "link": training.link(update).link}
    overrides = merge(overrides, merge(changed, {"training": {"fork": start}}))
    content = {key: described[key] for key in ("row", "pair", "corpus", "seed")} | {"overrides": overrides}
    _check_shapes(resolve(content), training, update)
    return content


def _set(settings: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at the dotted path of nested settings."""
    key, _, rest = path.partition(".")
    if rest:
        _set(settings.setdefault(key, {}), rest, value)
    else:
        settings[key] = value


def _check_shapes(configuration: Configuration, training: Training, update: int) -> None:
    """Raise InputError where the kept weights do not fit the model, or the training ends before its fork begins."""
    import torch

    from nmt.model import Transformer

    if configuration.training.updates <= update:
        raise InputError(
            f"training.updates is {configuration.training.updates:,}, but the fork begins after update {update:,}: "
            "raise training.updates or lower --at"
        )
    with torch.device("meta"):
        model = Transformer(configuration.model, training.job["vocabulary"], training.job.get("target_vocabulary"))
    ours = {name: tensor.shape for name, tensor in model.state_dict().items()}
    kept = {name: tensor.shape for name, tensor in load_tensors(training.kept[update] / WEIGHTS).items()}
    if other := sorted(name for name in ours.keys() | kept.keys() if ours.get(name) != kept.get(name)):
        raise InputError(
            f"the changed settings give `{other[0]}` another shape than the kept state has: a fork can change no size "
            "of the model"
        )


def fork(record: Record, update: int, assignments: Sequence[str]) -> str:
    """Run a fork of a recorded run in a copy of the repository; return its name.

    It is a DVC experiment and, in MLflow, a child of the run. Raises InputError where a stage fails.
    """
    content = params(record, update, changes(assignments))
    identity = json.dumps([content, train.code_digest()], sort_keys=True).encode()
    digest = hashlib.sha256(identity).hexdigest()[:6]
    name = folder_name(f"fork-{record.folder.name}-{update}-{digest}")
    run = Run(Path.cwd(), name, name, lambda line: print(line, flush=True), record.folder.name)
    # A fork that failed has left a copy with the code of that time. What it trained is outside the copy.
    with copies.held(run.folder):
        run.remove()
    with copies.held(run.folder, "owner"):
        try:
            run.begin(content, None)
            if run.dvc("repro") != 0:
                raise InputError(
                    f"{name} failed: read {run.folder / 'log'}, fix the cause and run this again to resume"
                )
            run.save(())
        finally:
            run.close()
        run.remove()
    return name


def summary(name: str, record: Record) -> str:
    """Return a line on the scores of a fork beside those of the run that it was made from."""
    ours, theirs = (each.scores() for each in (Record(runs_folder() / name), record))
    by = scorer(ours)
    pairs = ((by.title, by.key), ("validation perplexity", "ppl_valid"))
    return "; ".join(f"{title} {ours[key]:.2f}, {record.folder.name} {theirs[key]:.2f}" for title, key in pairs)
