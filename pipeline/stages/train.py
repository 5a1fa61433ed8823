"""Train the Transformer on the binned corpus with torchrun (section 5). A killed training resumes when run again.

Its state is `<state root>/train/<fingerprint>/`, outside DVC's outputs. The fingerprint has what decides the weights:
settings (without the number of updates, so that a finished training can be extended), data and code (the
modules of nmt among the stage's deps, and this one).
"""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from nmt import hardware
from nmt.common.files import FULL_DISK, link_or_copy, read_yaml, sha256_of, write_json, write_text, writing
from nmt.common.processes import TRAINERS, UNRECORDED, Interrupted, wait_for_sharers
from nmt.common.tensors import WEIGHTS
from nmt.errors import InputError
from nmt.model_settings import ModelSettings
from nmt.training import chain, checkpoint, history
from nmt.training.loop import Job
from nmt.training.settings import ForkSettings, StartSettings, TrainingSettings
from nmt.training.state import START
from pipeline.config import graph, paths
from pipeline.config.paths import read_json, state_root, state_store
from pipeline.config.sections import load_section
from pipeline.data import parent_folder

COLUMNS = (
    *("update", "loss", "nll", "ppl", "learning_rate", "gradient_norm"),
    *("tokens_per_second", "flops_per_second", "utilisation", "padding", "seconds"),
)
"""Columns of results/training.csv: a row per logging interval."""
VALIDATION_COLUMNS = ("update", "valid_loss", "valid_ppl", "seconds")  # columns of results/validation.csv

NOT_IN_FINGERPRINT = ("updates", "resume_minutes", "validate_every", "verify_every", "keep_states")
"""Training settings that do not change the weights after a given update: how long it trains, what is saved when."""

Launch = Callable[[Path, Callable[[], None]], int]
"""Trains the job in a folder and calls the second argument about once a second; returns an exit status."""
Show = Callable[[int, Mapping[str, float]], None]  # shows an update's record of the training's history


def run(
    launch: Launch,
    progress: Callable[[int], AbstractContextManager[Any]],
    follow: Callable[[Path], AbstractContextManager[object]],
) -> None:
    """Train, or resume training, and write the checkpoints.

    `progress` is called with the number of updates and returns what has `show`, a `Show`; `follow` with the folder of
    the state, whose history it may read while training works.
    """
    training = load_section("training", TrainingSettings)
    job = job_settings(training)
    state = state_folder(job)
    with locked(state):
        # The processes of a killed stage may still be saving their state.
        wait_for_sharers(state / TRAINERS, f"train: waiting for the processes of an earlier attempt ({state.name})")
        write_job(state, job)
        if training.fork is not None:
            begin_fork(state, training.fork)
        if training.start_from is not None:
            copy_parent(state, training.start_from)
        # With a store, a finished training may not have been uploaded yet.
        if state_store() is not None or not (state / "done.json").exists():
            with follow(state), progress(training.updates) as display:
                launch_and_watch(state, launch, display.show)
        write_outputs(state)


def job_settings(training: TrainingSettings) -> dict[str, Any]:
    """Return the job of a training with the model and the corpus of the current folder.

    Defaults are left out: a setting added later leaves the fingerprint of others as it is.
    """
    stats = read_json(paths.BINNED_STATS)
    vocabularies: dict[str, int] = {key: stats[key] for key in ("vocabulary", "target_vocabulary") if key in stats}
    model = load_section("model", ModelSettings)
    job = Job(model=model, training=training, corpus=str(paths.BINNED.resolve()), **vocabularies)
    return job.model_dump(exclude_defaults=True)


def state_folder(job: Mapping[str, Any]) -> Path:
    """Return the folder of this job's state, named by the hash of its settings and data, then by that of the code."""
    training = {key: value for key, value in job["training"].items() if key not in NOT_IN_FINGERPRINT}
    if start := training.get("start_from"):
        training["start_from"] = start["weights"]
    # The corpus is named by the hashes of its files.
    others = {key: value for key, value in job.items() if key != "corpus" and value is not None}
    inputs, code = _digest({**others, "training": training, "data": data_hashes()}), code_digest()
    root = state_root() / "train"
    chosen = root / f"{inputs}-{code}"
    if os.environ.get("WMT_RESUME_ACROSS_CODE") == "1" and not checkpoint.trained(chosen):
        older = [path for path in root.glob(f"{inputs}-{'?' * len(code)}") if checkpoint.trained(path)]
        if older:
            chosen = max(older, key=checkpoint.trained)
            print(f"train: resuming {chosen.name}, which was trained with other code (WMT_RESUME_ACROSS_CODE=1)")
    updates, trained = job["training"]["updates"], checkpoint.trained(chosen)
    if trained > updates:
        # Updates cannot be undone, and the user may still need the longer training.
        print(f"train: {chosen.name} is at update {trained:,} already: a training of {updates:,} starts beside it")
        chosen = chosen.with_name(f"{chosen.name}-{updates}")
    return chosen


def data_hashes() -> dict[str, str]:
    """Return the sha256 of every file of the binned corpus by its name."""
    return {path.name: sha256_of(path) for path in sorted(paths.BINNED.glob("*.arrow"))}


def begin_fork(state: Path, fork: ForkSettings) -> None:
    """Put the state that a fork starts from into `state`, with what was recorded up to it, unless it has begun.

    Raises InputError if no training under the state root keeps that state and no store may have the fork's own.
    """
    if checkpoint.latest_resume(state / "resume") is not None:
        return
    for origin in sorted(state.parent.glob("*/")):
        links = {link["update"]: str(link.get("link")) for link in history.read_history(origin / history.CHAIN)}
        kept = chain.kept_states(origin).get(fork.update)
        if kept is not None and links.get(fork.update, "").startswith(fork.link):
            break
    else:
        if state_store() is not None:
            return  # A fork that another machine began resumes from its own state in the store.
        raise InputError(
            f"training.fork: no training in {state.parent} keeps the state after update {fork.update:,} whose `link` "
            f"in its results/chain.json begins with {fork.link[:12]}: fork where that training was run with "
            "training.keep_states"
        )
    for name in (history.HISTORY, history.CHAIN):
        earlier = [record for record in history.read_history(origin / name) if record["update"] <= fork.update]
        write_text(state / name, "".join(json.dumps(record) + "\n" for record in earlier))
    # Copy the run's checkpoints up to the fork: the average may use them.
    for path in checkpoint.checkpoints(origin / "checkpoints"):
        if checkpoint.update_of(path) <= fork.update:
            with writing(state / "checkpoints" / path.name) as temporary:
                link_or_copy(path, temporary)
    for folder in ("states", "resume"):  # The last one makes the fork complete.
        chain.copy_state(kept, state / folder / kept.name)


def copy_parent(state: Path, start: StartSettings) -> None:
    """Copy the weights that a training starts from into its folder `state`, unless they are there.

    Raises InputError where the parent is missing or has other weights.
    """
    if not (state / START).exists():
        # No link: the parent's folder is the user's, who may change the file in place.
        with writing(state / START) as temporary:
            shutil.copyfile(parent_folder.find(start) / WEIGHTS, temporary)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def code_digest() -> str:
    """Return the hash of the modules that decide the weights: those of nmt in this stage's deps, and this one."""
    return _digest({str(path): sha256_of(path) for path in graph.stages()["train"].computing_code})


def locked(state: Path) -> AbstractContextManager[object]:
    """Lock a state for this process alone. The kernel releases the lock when the process ends, even if killed."""
    state.mkdir(parents=True, exist_ok=True)
    try:
        # `is_held` takes this lock for a moment to test it.
        return FileLock(state / "lock").acquire(timeout=0.2)
    except Timeout as error:
        message = "another process is at this training: wait for it, or stop it"
        raise BlockingIOError(errno.EAGAIN, message, str(state)) from error


def write_job(state: Path, job: Mapping[str, Any]) -> None:
    """Write job.yaml. Remove the outcome files of earlier attempts; done.json stays if it is of the same job."""
    path = state / "job.yaml"
    for name in ("interrupted", "failed.json"):
        (state / name).unlink(missing_ok=True)
    # In other copies of the repository the same corpus has another path.
    same = path.exists() and {**read_yaml(path), "corpus": ""} == {**job, "corpus": ""}
    if not same or not checkpoint.trained(state):
        (state / "done.json").unlink(missing_ok=True)
    write_text(path, yaml.safe_dump(dict(job), sort_keys=False))


def launch_and_watch(state: Path, launch: Launch, show: Show) -> None:
    """Train to the end, and show what the main rank records.

    Raises Interrupted if it was asked to stop, InputError for a user's error, ChildProcessError if a process died.
    """
    measured = history.HistoryReader(state / history.HISTORY)
    measured.new()  # Skip the records of an earlier attempt: updates that it did not save are trained again.

    def watch() -> None:
        raise_if_refused(state)
        if (state / "interrupted").exists():
            # On several nodes, the others would wait for the stopped one to come back.
            raise Interrupted("a training process was asked to stop")
        for record in measured.new():
            show(int(record["update"]), record)

    status = launch(state, watch)
    if not (state / "done.json").exists():
        raise outcome(state, status)
    watch()


def raise_if_refused(state: Path) -> None:
    """Raise InputError where a training process reported an error of the user's, which torchrun would only retry."""
    # A restart may remove the file at any moment.
    with contextlib.suppress(FileNotFoundError):
        failure = json.loads((state / "failed.json").read_text(encoding="utf-8"))
        if failure["state"] == "refused":
            raise InputError(str(failure["error"]))


def outcome(state: Path, status: int) -> Exception:
    """Return why a training ended before its last update, from torchrun's exit status and the files that are there."""
    raise_if_refused(state)
    if (state / "failed.json").exists():
        failure = read_json(state / "failed.json")
        if failure.get("errno") in FULL_DISK:
            return OSError(failure["errno"], os.strerror(failure["errno"]), failure["file"])
        return ChildProcessError(f"a training process failed: {failure['error']}; its output is above")
    if (state / "interrupted").exists():
        return Interrupted("a training process was asked to stop")
    if status == UNRECORDED:
        message = "a training process failed and could not write why, as on a full disk; see above"
        return OSError(errno.ENOSPC, message, str(state))
    # Killed (by the system where memory runs out, say), or disconnected from the other nodes.
    return Interrupted("a training process was lost")


def write_outputs(state: Path) -> None:
    """Write the stage's outputs from a finished state."""
    with writing(paths.CHECKPOINTS) as temporary:
        temporary.mkdir()
        for path in checkpoint.checkpoints(state / "checkpoints"):
            link_or_copy(path, temporary / path.name)
        last = state / f"resume/update-{checkpoint.trained(state):08d}"
        link_or_copy(last / WEIGHTS, temporary / "last.safetensors")
    summary = read_json(state / "done.json")
    # The speed of an unknown device is measured, which is possible only for the device of this machine.
    devices = {name: name if hardware.on_record(name) else summary["device"] for name in summary["device_seconds"]}
    sustained = {name: hardware.sustained(device) for name, device in devices.items()}
    write_json(paths.TRAINING, {**summary, "flops_sustained": sustained})
    records = history.read_history(state / history.HISTORY)
    write_curves(records)
    examples = ({key: each[key] for key in ("update", "outputs")} for each in records if "outputs" in each)
    write_text(paths.VALIDATION_OUTPUTS, "".join(json.dumps(each) + "\n" for each in examples))
    job = read_yaml(state / "job.yaml")
    del job["corpus"]  # In other copies of the repository the same corpus has another path.
    decided_by = {"state": state.name, "job": job, "data": data_hashes(), "code": state.name.split("-")[1]}
    write_json(paths.CHAIN, {**decided_by, "links": history.read_history(state / history.CHAIN)})


def write_curves(records: Sequence[Mapping[str, float]]) -> None:
    """Write the tables of logging intervals and of validations, for DVC's plots."""
    tables = (paths.CURVES, COLUMNS, "loss"), (paths.VALIDATION, VALIDATION_COLUMNS, "valid_loss")
    for path, columns, key in tables:
        rows = [record for record in records if key in record]
        # Without columns that some records lack: DVC plots an empty cell as 0.
        complete = [column for column in columns if all(column in row for row in rows)]
        with writing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, complete, extrasaction="ignore", lineterminator="\n")
            table.writeheader()
            table.writerows(rows)
