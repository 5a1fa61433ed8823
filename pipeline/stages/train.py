"""Train the Transformer on the binned corpus with torchrun (section 5). A killed training resumes when run again.

Its state is `<state root>/train/<fingerprint>/`, outside DVC's outputs. The fingerprint has what decides the weights:
settings (without the number of updates, so that a finished training can be extended), data and code (that of nmt and of
this module).
"""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import yaml
from filelock import FileLock, Timeout

from nmt import flops
from nmt.common.files import link_or_copy, read_yaml, sha256_of, writing
from nmt.common.processes import TRAINERS, UNRECORDED, wait_for_sharers
from nmt.config import ForkSettings, InputError, ModelSettings, TrainingSettings
from pipeline.common import stage
from pipeline.common.paths import BINNED, BINNED_STATS, CHAIN, CHECKPOINTS, CURVES, TRAINING, VALIDATION
from pipeline.common.settings import load_section
from pipeline.common.stage import Interrupted, Tracker
from pipeline.config import graph

COLUMNS = (
    *("update", "loss", "nll", "ppl", "learning_rate", "gradient_norm"),
    *("tokens_per_second", "flops_per_second", "utilisation", "padding", "seconds"),
)
"""Columns of results/training.csv: a row per logging interval."""
VALIDATION_COLUMNS = ("update", "valid_loss", "valid_ppl", "seconds")
"""Columns of results/validation.csv."""

CURVES_SECONDS = 10.0
"""Seconds between two versions of the tables while training works, so that `dvc plots show` draws them."""

STOPPING = ("validate_every", "patience")
"""Training settings that decide when a training with a patience stops early."""
NOT_IN_FINGERPRINT = ("updates", "resume_minutes", "verify_every", "keep_states", *STOPPING)
"""Training settings that do not change the weights after a given update."""

Launch = Callable[[Path, Callable[[], None]], int]
"""Trains the job in a folder and calls the second argument about once a second; returns an exit status."""


class Progress(Protocol):
    """Shows how far training is."""

    def show(self, update: int, record: Mapping[str, float]) -> None:
        """Show a record of the training's history."""


def run(tracker: Tracker, launch: Launch, progress: Callable[[int], AbstractContextManager[Progress]]) -> None:
    """Train, or resume training, and publish the checkpoints. `progress` is called with the number of updates."""
    model = load_section("model", ModelSettings)
    training = load_section("training", TrainingSettings)
    stats = stage.read_json(BINNED_STATS)
    vocabularies: dict[str, int] = {key: stats[key] for key in ("vocabulary", "target_vocabulary") if key in stats}
    job = job_settings(model, training, vocabularies)
    state = state_folder(job)
    with locked(state):
        # A stage that was killed leaves its processes the time to save.
        wait_for_sharers(state / TRAINERS, f"train: waiting for the processes of an earlier attempt ({state.name})")
        write_job(state, job)
        if training.fork is not None:
            begin_fork(state, training.fork)
        # With a store, a finished training may not have been uploaded yet.
        if stage.state_store() is not None or not (state / "done.json").exists():
            train(state, tracker, launch, progress(training.updates))
        publish(state, tracker)


def job_settings(model: ModelSettings, training: TrainingSettings, vocabularies: Mapping[str, int]) -> dict[str, Any]:
    """Return a training's job without defaults: a setting added later leaves the fingerprint of others as it is."""
    # Not from nmt.config: tests/test_graph.py derives the stage's deps from its imports, and torchrun runs the trainer.
    from nmt.training.trainer import Job

    job = Job(model=model, training=training, corpus=str(BINNED.resolve()), **vocabularies)
    return job.model_dump(exclude_defaults=True)


def state_folder(job: Mapping[str, Any]) -> Path:
    """Return the folder of this job's state, named by the hash of its settings and data, then by that of the code."""
    # Imported here: importing torch takes a second.
    from nmt.training import checkpoint

    inputs, code = _digest({**deciding_settings(job), "data": data_hashes()}), code_digest()
    root = stage.state_root() / "train"
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


def deciding_settings(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a job that decide its weights after a given update."""
    ignored = set(NOT_IN_FINGERPRINT)
    if job["training"]["patience"] is not None:
        ignored -= set(STOPPING)
    training = {key: value for key, value in job["training"].items() if key not in ignored}
    vocabularies = {key: job.get(key) for key in ("vocabulary", "target_vocabulary") if job.get(key) is not None}
    return {"model": job["model"], "training": training, **vocabularies}


def data_hashes() -> dict[str, str]:
    """Return the sha256 of every file of the binned corpus by its name."""
    return {path.name: sha256_of(path) for path in sorted(BINNED.glob("*.arrow"))}


def begin_fork(state: Path, fork: ForkSettings) -> None:
    """Put the state that a fork starts from into `state`, with what was recorded up to it, unless it has begun.

    Raises InputError where no training under the state root keeps the state, and no store may have the fork's own.
    """
    from nmt.training import chain, checkpoint, history

    if checkpoint.latest_resume(state / "resume") is not None:
        return
    for origin in sorted(state.parent.glob("*/")):
        kept = chain.kept_states(origin).get(fork.update)
        with contextlib.suppress(InputError):  # The chain of another version.
            links = chain.read_chain(origin / history.CHAIN) if kept else []
            if kept is not None and any((link.update, link.link) == (fork.update, fork.link) for link in links):
                break
    else:
        if stage.state_store() is not None:
            return  # A fork that another machine began resumes from its own state in the store.
        raise InputError(
            f"training.fork: no training in {state.parent} keeps the state after update {fork.update:,} with the hash "
            f"{fork.link[:12]}: run `wmt fork` where the training was run"
        )
    for name in ("history.jsonl", history.CHAIN):
        earlier = [record for record in history.read_history(origin / name) if record["update"] <= fork.update]
        with writing(state / name) as temporary:
            temporary.write_text("".join(json.dumps(record) + "\n" for record in earlier), encoding="utf-8")
    # Copy the run's checkpoints up to the fork: the average may use them.
    for path in checkpoint.checkpoints(origin / "checkpoints"):
        if checkpoint.update_of(path) <= fork.update:
            with writing(state / "checkpoints" / path.name) as temporary:
                link_or_copy(path, temporary)
    for folder in ("states", "resume"):  # The last one makes the fork complete.
        chain.copy_state(kept, state / folder / kept.name)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def code_digest() -> str:
    """Return the hash of the modules that decide the weights: those of nmt in this stage's deps, and this one."""
    return _digest({str(path): sha256_of(path) for path in graph.stages()["train"].computing_code})


def locked(state: Path) -> AbstractContextManager[object]:
    """Lock a state for this process alone. The kernel releases the lock when the process ends, even if killed."""
    state.mkdir(parents=True, exist_ok=True)
    try:
        # Whoever asks whether it is held (`is_held`) holds it for a moment.
        return FileLock(state / "lock").acquire(timeout=0.2)
    except Timeout as error:
        message = "another process is at this training: wait for it, or stop it"
        raise BlockingIOError(errno.EAGAIN, message, str(state)) from error


def write_job(state: Path, job: Mapping[str, Any]) -> None:
    """Write job.yaml. Remove the outcome files of earlier attempts; done.json stays if the job is the same."""
    path = state / "job.yaml"
    for name in ("interrupted", "failed.json"):
        (state / name).unlink(missing_ok=True)
    for left in (*state.glob(".*.tmp"), *state.glob("*/.*.tmp")):
        # Left by a kill while a checkpoint was written. The state is locked, so no other process writes here; but a
        # torchrun that is ending removes its own.
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    if path.exists():
        before = read_yaml(path)
        # In other copies of the repository the same corpus has another path.
        if {**before, "corpus": ""} != {**job, "corpus": ""}:
            (state / "done.json").unlink(missing_ok=True)
    with writing(path) as temporary:
        temporary.write_text(yaml.safe_dump(dict(job), sort_keys=False), encoding="utf-8")


def train(state: Path, tracker: Tracker, launch: Launch, progress: AbstractContextManager[Progress]) -> None:
    """Run torchrun to the end and log what rank 0 measures.

    Raises Interrupted when it was asked to stop, InputError for a user's error, ChildProcessError when a process died.
    """
    history = HistoryReader(state / "history.jsonl")
    written = time.monotonic()
    with progress as display:

        def watch() -> None:
            nonlocal written
            raise_if_refused(state)
            if (state / "interrupted").exists():
                # On several nodes, the others would wait for the stopped one to come back.
                raise Interrupted("a training process was asked to stop")
            for record in history.new():
                update = int(record["update"])
                tracker.metrics({k: v for k, v in record.items() if k != "update"}, update)
                display.show(update, record)
            if history.position and time.monotonic() - written > CURVES_SECONDS:
                with contextlib.suppress(OSError):  # A full disk; `publish` writes them in the end.
                    write_curves(history.path)
                written = time.monotonic()

        status = launch(state, watch)
        if not (state / "done.json").exists():
            raise _outcome(state, status)
        watch()


def raise_if_refused(state: Path) -> None:
    """Raise InputError if a training process reported an error of the user's, which torchrun would only retry."""
    # A restart may remove the file at any moment.
    with contextlib.suppress(FileNotFoundError):
        failure = json.loads((state / "failed.json").read_text(encoding="utf-8"))
        if failure["state"] == "refused":
            raise InputError(str(failure["error"]))


def _outcome(state: Path, status: int) -> Exception:
    """Return why a training ended before its last update, from torchrun's exit status and the files that are there."""
    raise_if_refused(state)
    if (state / "failed.json").exists():
        failure = stage.read_json(state / "failed.json")
        return ChildProcessError(f"a training process failed: {failure['error']}; its output is above")
    if (state / "interrupted").exists():
        return Interrupted("a training process was asked to stop")
    if status == UNRECORDED:
        return ChildProcessError("a training process failed and could not write why: the disk may be full; see above")
    # Killed (by the system where memory runs out, say), or disconnected from the other nodes.
    return Interrupted("a training process was lost")


class HistoryReader:
    """A history file that another process appends to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = 0  # bytes read so far

    def new(self) -> Iterator[dict[str, float]]:
        """Yield the records since the last call. A resume rewrites the file: then all records are new.

        A line that cannot be read is the last one until then.
        """
        if not self.path.exists():
            return
        if self.path.stat().st_size < self.position:
            self.position = 0
        with self.path.open("rb") as file:
            file.seek(self.position)
            while (line := file.readline()).endswith(b"\n"):
                try:
                    record: dict[str, float] = json.loads(line)
                except ValueError:
                    return
                self.position += len(line)
                yield record


def publish(state: Path, tracker: Tracker) -> None:
    """Write the stage's outputs from a finished state: checkpoints, summary and curves."""
    from nmt.training import checkpoint

    resume = checkpoint.latest_resume(state / "resume")
    if resume is None:
        raise InputError(
            f"{state} is finished, but its resume/ is empty: `wmt states --free {state.name}` frees "
            "it, and `dvc repro` trains again"
        )
    with writing(CHECKPOINTS) as temporary:
        temporary.mkdir()
        for path in sorted((state / "checkpoints").glob("update-*.safetensors")):
            link_or_copy(path, temporary / path.name)
        link_or_copy(resume / "model.safetensors", temporary / "last.safetensors")
    summary = stage.read_json(state / "done.json")
    device, times = summary["device"], summary["device_seconds"]
    # The speed of an unknown device is measured, which is possible only for the device of this machine.
    sustained = {name: flops.sustained(name if flops.hardware(name) else device) for name in times}
    summary["flops_sustained"] = sustained
    summary["flops_paper"] = sum(flops.paper_cost(times[name], 1, sustained[name]) for name in times)
    stage.write_json(TRAINING, summary)
    write_curves(state / "history.jsonl")
    write_chain(state)
    # Metrics with a curve are logged by update; a point without an update would distort the curve.
    tracker.metrics({k: v for k, v in summary.items() if isinstance(v, int | float) and k not in COLUMNS})
    tracker.tags({"device": device, "precision": summary["precision"]})


def write_curves(history: Path) -> None:
    """Write the tables of logging intervals and of validations, for DVC's plots."""
    records = list(HistoryReader(history).new())
    _write_table(CURVES, COLUMNS, [record for record in records if "loss" in record])
    _write_table(VALIDATION, VALIDATION_COLUMNS, [record for record in records if "valid_loss" in record])


def write_chain(state: Path) -> None:
    """Write the chain of hashes with what decided the weights: settings, data and code."""
    from nmt.training import history

    job = read_yaml(state / "job.yaml")
    del job["corpus"]  # In other copies of the repository the same corpus has another path.
    content = {"state": state.name, "job": job, "data": data_hashes(), "code": state.name.split("-")[1]}
    stage.write_json(CHAIN, {**content, "links": history.read_history(state / history.CHAIN)})


def _write_table(path: Path, columns: Sequence[str], records: Sequence[Mapping[str, float]]) -> None:
    """Write one row per update, in order, without columns that some records lack: DVC plots an empty cell as 0."""
    rows = {int(record["update"]): {**record, "update": int(record["update"])} for record in records}
    complete = [column for column in columns if all(column in row for row in rows.values())]
    with writing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, complete, extrasaction="ignore", lineterminator="\n")
        table.writeheader()
        table.writerows(row for _, row in sorted(rows.items()))
