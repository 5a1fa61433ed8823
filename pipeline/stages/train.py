"""Train the Transformer on the binned corpus, by torchrun (section 5). Killed at any time, it goes on where it stopped.

Its state lives in `<state root>/train/<fingerprint>/`, outside DVC's outputs. The fingerprint holds all that decides
the weights: the settings but for the number of updates, the data and the code. So a finished run can be extended,
and a changed one starts afresh.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import yaml

from nmt import flops
from nmt.common.files import sha256_of, writing
from nmt.config import InputError, ModelSettings, TrainingSettings
from pipeline import stage
from pipeline.config import graph
from pipeline.config.settings import load_section
from pipeline.stage import Interrupted, Tracker

BINNED = Path("data/binned")
CHECKPOINTS = Path("models/checkpoints")
SUMMARY = Path("results/training.json")
CURVES = Path("results/training.csv")
VALIDATION = Path("results/validation.csv")

COLUMNS = (
    "update", "loss", "nll", "ppl", "learning_rate", "gradient_norm", "tokens_per_second", "flops_per_second",
    "utilisation", "padding",
)  # fmt: skip
"""Of the table of intervals."""
VALIDATION_COLUMNS = ("update", "valid_loss", "valid_ppl")
"""Of the table of validations."""

DECIDE_THE_STOP = ("validate_every", "patience")
"""Training settings by which a training may end early, where there is a patience."""
DECIDES_NOTHING = ("updates", "resume_minutes", *DECIDE_THE_STOP)
"""Training settings that leave the weights after a given update as they are."""


Launch = Callable[[Path, Callable[[], None]], int]
"""Trains the job in a folder to its end, calling the second argument about once a second; returns an exit status."""


class Progress(Protocol):
    """Shows how far training is."""

    def show(self, update: int, record: Mapping[str, float]) -> None:
        """Show a record of the training's history."""


def run(tracker: Tracker, launch: Launch, progress: Callable[[int], AbstractContextManager[Progress]]) -> None:
    """Train, or resume training, and publish the checkpoints. `progress` is called with the number of updates."""
    # Imported from the trainer, so that this stage depends on all the code that torchrun runs.
    from nmt.training.trainer import Job

    model = load_section("model", ModelSettings)
    training = load_section("training", TrainingSettings)
    stats = stage.read_json(BINNED / "stats.json")
    vocabularies = {key: stats[key] for key in ("vocabulary", "target_vocabulary") if key in stats}
    # Without defaults, so that a setting added later leaves the fingerprint of other trainings as it is.
    job = Job(model=model, training=training, corpus=str(BINNED.resolve()), **vocabularies).model_dump(
        exclude_defaults=True
    )
    state = state_folder(job)
    with locked(state):
        prepare(state, job)
        if not (state / "done.json").exists():
            train(state, tracker, launch, progress(training.updates))
        publish(state, tracker)


def state_folder(job: Mapping[str, Any]) -> Path:
    """Where this job's state lives: named by the hash of its settings and data, then by that of the code."""
    # With it comes torch, which `--help` need not wait for.
    from nmt.training import checkpoint

    stops = job["training"]["patience"] is not None
    training = {
        key: value for key, value in job["training"].items()
        if key not in DECIDES_NOTHING or (stops and key in DECIDE_THE_STOP)
    }  # fmt: skip
    data = {path.name: sha256_of(path) for path in sorted(BINNED.glob("*.arrow"))}
    vocabularies = {key: job.get(key) for key in ("vocabulary", "target_vocabulary") if job.get(key) is not None}
    what = _digest({"model": job["model"], "training": training, **vocabularies, "data": data})
    code = code_digest()
    root = stage.state_root() / "train"
    chosen = root / f"{what}-{code}"
    if os.environ.get("WMT_RESUME_ACROSS_CODE") == "1" and not checkpoint.trained(chosen):
        older = [path for path in root.glob(f"{what}-{'?' * len(code)}") if checkpoint.trained(path)]
        if older:
            chosen = max(older, key=checkpoint.trained)
            print(f"train: going on with {chosen.name}, whose code was another (WMT_RESUME_ACROSS_CODE=1)")
    wanted, trained = job["training"]["updates"], checkpoint.trained(chosen)
    if trained > wanted:
        # Weights cannot be taken back, and what was trained for longer may still be wanted.
        print(f"train: {chosen.name} has come to update {trained:,} already: {wanted:,} are trained beside it")
        chosen = chosen.with_name(f"{chosen.name}-{wanted}")
    return chosen


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def code_digest() -> str:
    """The hash of the modules that training consists of: the code deps of this stage in dvc.yaml."""
    return _digest({str(path): sha256_of(path) for path in graph.stages()["train"].code})


@contextlib.contextmanager
def locked(state: Path) -> Iterator[None]:
    """Hold a state alone; the system lets go of the lock when this process ends, however it ends."""
    state.mkdir(parents=True, exist_ok=True)
    with (state / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            told = "another process is at this training: wait for it, or stop it"
            raise BlockingIOError(error.errno, told, str(state)) from error
        yield


def prepare(state: Path, job: Mapping[str, Any]) -> None:
    """Write the job; drop what says how an earlier attempt ended, unless it was the same."""
    path = state / "job.yaml"
    for name in ("interrupted", "failed.json"):
        (state / name).unlink(missing_ok=True)
    for left in (*state.glob(".*.tmp"), *state.glob("*/.*.tmp")):
        # What a kill in the middle of a checkpoint left behind. Nobody else writes here: the state is locked.
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    if path.exists():
        before = yaml.safe_load(path.read_text(encoding="utf-8"))
        # Runs in other copies of the repository have the same corpus elsewhere.
        if {**before, "corpus": ""} != {**job, "corpus": ""}:
            (state / "done.json").unlink(missing_ok=True)
    with writing(path) as temporary:
        temporary.write_text(yaml.safe_dump(dict(job), sort_keys=False), encoding="utf-8")


def train(state: Path, tracker: Tracker, launch: Launch, progress: AbstractContextManager[Progress]) -> None:
    """Run torchrun to the end, handing on what rank 0 measures.

    Raises Interrupted when it was asked to stop, InputError when the user must mend something, and ChildProcessError
    when a process died.
    """
    history = History(state / "history.jsonl")
    with progress as shown:

        def watch() -> None:
            refused(state)
            if (state / "interrupted").exists():
                # With several nodes, those that nobody stopped would wait for the others to come back.
                raise Interrupted("a training process was asked to stop")
            for record in history.new():
                update = int(record["update"])
                tracker.metrics({k: v for k, v in record.items() if k != "update"}, update)
                shown.show(update, record)

        launch(state, watch)
        if not (state / "done.json").exists():
            raise _outcome(state)
        watch()


def refused(state: Path) -> None:
    """Raise InputError where a training process wants the user to mend something: torchrun would start it again."""
    # Gone again, perhaps by now, where a restart went well.
    with contextlib.suppress(FileNotFoundError):
        failure = json.loads((state / "failed.json").read_text(encoding="utf-8"))
        if failure["state"] == "refused":
            raise InputError(str(failure["error"]))


def _outcome(state: Path) -> Exception:
    """Why a training ended before its last update, from what its processes left behind."""
    refused(state)
    if (state / "failed.json").exists():
        failure = stage.read_json(state / "failed.json")
        return ChildProcessError(f"a training process failed: {failure['error']}; what it said stands above")
    if (state / "interrupted").exists():
        return Interrupted("a training process was asked to stop")
    # Killed (by the system where memory runs out, say), or cut off from the other nodes.
    return Interrupted("a training process was lost")


class History:
    """A history file that another process appends to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen = 0

    def new(self) -> Iterator[dict[str, float]]:
        """Records written since the last call. A resume rewrites the file: then all of it is new."""
        if not self.path.exists():
            return
        size = self.path.stat().st_size
        if size < self.seen:
            self.seen = 0
        with self.path.open("rb") as file:
            file.seek(self.seen)
            while (line := file.readline()).endswith(b"\n"):
                self.seen += len(line)
                record: dict[str, float] = json.loads(line)
                yield record


def publish(state: Path, tracker: Tracker) -> None:
    """Hand on the checkpoints, the summary and the curves."""
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
            _link(path, temporary / path.name)
        _link(resume / "model.safetensors", temporary / "last.safetensors")
    summary = stage.read_json(state / "done.json")
    kind, times = summary["device"], summary["device_seconds"]
    # A device that is not on record is measured, which only the one that is here can be.
    sustained = {name: flops.sustained(name if flops.hardware(name) else kind) for name in times}
    summary["flops_sustained"] = sustained
    summary["flops_paper"] = sum(flops.paper_cost(times[name], 1, sustained[name]) for name in times)
    stage.write_json(SUMMARY, summary)
    write_curves(state / "history.jsonl")
    # What has a curve is told by it: one more point, at no update, would bend it.
    tracker.metrics({k: v for k, v in summary.items() if isinstance(v, int | float) and k not in COLUMNS})
    tracker.tags({"device": kind, "precision": summary["precision"]})


def _link(source: Path, target: Path) -> None:
    """A second name for the same bytes, or a copy on another disk. Checkpoints are never changed in place."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def write_curves(history: Path) -> None:
    """A row an interval and, in a table of their own, a row a validation, for DVC's plots."""
    records = list(History(history).new())
    _write_table(CURVES, COLUMNS, (record for record in records if "loss" in record))
    _write_table(VALIDATION, VALIDATION_COLUMNS, (record for record in records if "valid_loss" in record))


def _write_table(path: Path, columns: Sequence[str], records: Iterable[Mapping[str, float]]) -> None:
    """A row an update, in order. DVC plots an empty cell as 0: a column that not every record has is left out."""
    rows = {int(record["update"]): {**record, "update": int(record["update"])} for record in records}
    complete = [column for column in columns if all(column in row for row in rows.values())]
    with writing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, complete, extrasaction="ignore", lineterminator="\n")
        table.writeheader()
        table.writerows(row for _, row in sorted(rows.items()))
