"""A run of the pipeline as files. `publish.py` brings MLflow to what they say.

<state root>/runs/<id>/
    run.json             name, row, pair, corpus, seed, parent, settings that differ from the row, tags of orchestrators
    dvc.lock             as the last stage found it, or as the finished run left it
    stages/<stage>.json  status, start, end, seconds, metrics, tags and evidence
    history.jsonl        what training measured, one line per record
    load.jsonl           the load of the machine while it trained
    differences/         the diff between the working tree and the commit when a stage ran
    results/             what finished stages wrote there; results/config.yaml is the resolved configuration,
                         results/corpora.json the lines and checksums of the texts, results/samples.json and
                         results/translations.csv the test set with its translations
    model/               the averaged model, as hard links where the disk allows it
    published.json       the MLflow run, and the state of these files when they were last published

A run by Prefect or the ablation has its working copy of the repository, its log and its status files here, too.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nmt.common.files import link_or_copy, read_yaml, writing
from nmt.config import InputError
from pipeline.common.paths import BINNED, CONFIG, RAW, SCORES
from pipeline.common.stage import read_json, state_root, write_json
from pipeline.config import graph, rows
from pipeline.config.resolution import SECTIONS
from pipeline.config.scorer import scorer
from pipeline.runs import evidence
from pipeline.runs.tables import curve, write_translations

MODEL = Path("models/average")
CORPORA = "corpora.json"
"""Lines and checksums of the texts, in the results."""
TAGS = {"DVC_EXP_NAME": "DVC_EXP_NAME", "WMT_FLOW_RUN": "prefect.flow_run_id"}
"""Environment variables that orchestrators set, and the tags that hold them."""
STATUSES = {"running": "KILLED", "failed": "FAILED", "killed": "KILLED", "finished": "FINISHED", "cached": "FINISHED"}
"""Recorded status of the last stage, when none of its processes is alive -> MLflow's status of the run."""
FILES = ("run.json", "dvc.lock", "stages", "differences", "history.jsonl", "load.jsonl", "results", "model")
"""What is published of a record."""


class Record:
    """The files of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.history, self.load = folder / "history.jsonl", folder / "load.jsonl"
        self.results, self.model = folder / "results", folder / "model"
        self.config = folder / CONFIG

    def create(self, config: Path | None = None, **description: Any) -> None:
        """Write run.json, if there is none: `description`, and what `config`, the resolved configuration, says."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if config is not None and not self.config.exists():
            keep(config, self.config)
        if (self.folder / "run.json").exists():
            return
        tags = {tag: os.environ[variable] for variable, tag in TAGS.items() if variable in os.environ}
        content = {
            "name": self.folder.name,
            "parent": os.environ.get("WMT_PARENT"),
            "created": now(),
            "tags": tags,
            "uuid": uuid.uuid4().hex,
            "settings": {},
            "complete": False,
        }
        if config is not None:
            configuration = read_yaml(config)
            run = configuration["run"]
            of_row = dict(rows.flat(rows.settings(run["row"], run["pair"])))
            chosen = rows.flat({section: configuration[section] for section in SECTIONS if section in configuration})
            content |= run
            content["name"] = " ".join(filter(None, [run_name(run), tags.get("DVC_EXP_NAME")]))
            content["settings"] = {
                key: value for key, value in chosen if key != "training.seed" and of_row.get(key) != value
            }
        write_json(self.folder / "run.json", content | description)

    def description(self) -> dict[str, Any]:
        """Return the content of run.json."""
        return self._read("run.json", "name", "created", "parent", "tags", "uuid", "settings", "complete")

    def _read(self, name: str, *keys: str) -> dict[str, Any]:
        """Return the JSON object in a file of the record; raise InputError where it is damaged or lacks `keys`."""
        return read_json(self.folder / name, *keys, remedy=f"restore it, or remove {self.folder}")

    def scores(self) -> dict[str, Any]:
        """Return what `score` has found: numbers and facts; nothing before it has."""
        if not (self.folder / SCORES).exists():
            return {}
        by = scorer(self._read(str(SCORES)))
        return self._read(str(SCORES), by.key)

    def stages(self) -> dict[str, dict[str, Any]]:
        """Return stage -> content of its file, in the order in which they started."""
        paths = self.folder.glob("stages/*.json")
        found = {path.stem: self._read(f"stages/{path.name}", "status", "start") for path in paths}
        return dict(sorted(found.items(), key=lambda item: item[1]["start"]))

    def status(self) -> str:
        """Return MLflow's status of the run: that of the stage that started last."""
        if is_locked(self.stage_lock):
            return "RUNNING"
        last = next(reversed(self.stages().values()), None)
        if last is None:
            return "FINISHED" if self.description()["complete"] else "KILLED"
        return STATUSES[last["status"]]

    def is_complete(self) -> bool:
        """Return whether the last stage has finished. The next run of the same configuration is another one."""
        return (self.folder / "run.json").exists() and bool(self.description()["complete"])

    @property
    def stage_lock(self) -> Path:
        """The file that a stage holds as a lock while it works."""
        return self.folder / "stage.lock"

    def last(self) -> tuple[int, set[str]]:
        """Return the last update of the history and the names of what was measured there; (-1, no names) if none."""
        update, names = -1, set[str]()
        for line in read(self.history)[0]:
            if line["update"] > update:
                update, names = line["update"], set()
            names |= line["values"].keys()
        return update, names

    def collect(self, stages: Iterable[str]) -> None:
        """Copy the results of finished stages, and take over the curves of a training that DVC restored."""
        declared = graph.stages()
        for path in (Path(out) for name in stages for out in declared[name].outs):
            if path.exists() and (path == MODEL or path.parts[0] == "results"):
                keep(path, self.model if path == MODEL else self.folder / path)
        if Path("dvc.lock").exists():
            keep(Path("dvc.lock"), self.folder / "dvc.lock")
        if (RAW / "stats.json").exists() and any(str(RAW) in declared[name].outs for name in stages):
            keep(RAW / "stats.json", self.results / CORPORA)
        if (self.results / "translations").exists():
            write_translations(read_yaml(self.config)["data"], self.results)
        update, names = self.last()
        records = [row for name in ("training", "validation") for row in curve(self.results / f"{name}.csv")]
        for step, values in sorted(records, key=lambda row: row[0]):
            if step > update or (step == update and not values.keys() <= names):
                append(self.history, {"time": now(), "update": step, "values": values})

    def finish(self, stages: Sequence[str]) -> None:
        """Collect the results of `stages`, all of the run in order. DVC restored those that did not finish."""
        done = [name for name, stage in self.stages().items() if stage["status"] in {"finished", "cached"}]
        for name in stages:
            if name not in done:
                found = {"tags": evidence.code(), "deps": evidence.dependencies(name, ran=False)}
                content = {"status": "cached", "start": now(), "end": now(), "evidence": found}
                write_json(self.folder / f"stages/{name}.json", content)
        self.collect(stages)
        self.update(complete=stages[-1] == graph.last_stage())

    def update(self, **changes: Any) -> None:
        """Change run.json."""
        if self.description() != (content := self.description() | changes):
            write_json(self.folder / "run.json", content)

    def signature(self) -> str:
        """Return a hash of names, sizes and times of the files to publish."""
        return signature(self.folder / name for name in FILES)

    def published(self) -> dict[str, Any]:
        """Return published.json (uri, experiment, run, signature, status); nothing if nothing was published."""
        return self._read("published.json") if (self.folder / "published.json").exists() else {}

    def is_published(self, uri: str | None = None) -> bool:
        """Return whether MLflow (at `uri`, if one is given) has all that the record says."""
        note = self.published()
        current = {"signature": self.signature(), "status": self.status(), "uri": uri or note.get("uri")}
        return note | current == note


def runs_folder() -> Path:
    """Return the folder of all records."""
    return state_root().absolute() / "runs"


def records(folder: Path) -> list[Record]:
    """Return the records in `folder`: damaged ones, whose methods raise InputError, then the others, oldest first."""

    def created(record: Record) -> int:
        with suppress(InputError):
            return int(record.description()["created"])
        return 0

    return sorted((Record(path.parent) for path in folder.glob("*/run.json")), key=created)


@contextmanager
def lock(path: Path, wait: bool = True) -> Iterator[bool]:
    """Hold `path` as a lock, made where it is missing; the system releases it however the process ends.

    Yields False, without the lock, where another process holds it and `wait` is not set.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def is_locked(path: Path) -> bool:
    """Return whether a process holds `path` as a lock. Several processes may ask at the same time."""
    if not path.exists():
        return False
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def run_name(run: Mapping[str, Any]) -> str:
    """Return the name that tells a run from those of other rows, corpora and seeds."""
    return f"{run['row']}-{run.get('corpus')}-s{run.get('seed')}"


def folder_name(name: str) -> str:
    """Return a run's name as that of its folder, which may also be a DVC experiment's."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


def current_record() -> Record | None:
    """Return the current run's record, None before `resolve`.

    It is the one named by $WMT_RUN, else the first incomplete one of this configuration and training code. It may not
    be on disk yet: `create` writes it.
    """
    if not CONFIG.exists():
        return None
    if name := os.environ.get("WMT_RUN"):
        return Record(runs_folder() / folder_name(name))
    return next(record for record in numbered_records() if not record.is_complete())


def separate_if_data_changed(record: Record) -> Record:
    """Return `record`; if its training used other data, complete it and return the next incomplete record instead.

    Training on changed data starts at update 1, and two trainings in one record would be drawn as one curve. The stages
    before training are copied to the other record. Of these, those that started after the old training are removed from
    `record`.
    """
    training, data = graph.training_stage(), str(BINNED)
    trained = record.stages().get(training or "", {})
    before = trained.get("evidence", {}).get("deps", {})
    if training is None or data not in before or before[data] == evidence.dependencies(training).get(data):
        return record
    record.update(complete=True)
    following = next(other for other in numbered_records() if not other.is_complete())
    following.create(CONFIG)
    for name, content in record.stages().items():
        if name in graph.upstream(training, graph.stages())[:-1]:
            write_json(following.folder / f"stages/{name}.json", content)
            if content["start"] > trained["start"]:
                (record.folder / f"stages/{name}.json").unlink()
    return following


def numbered_records() -> Iterator[Record]:
    """Yield, without end, the records of runs of this configuration and this code of training, numbered.

    Those after the last run do not exist yet.
    """
    digest = hashlib.sha256(CONFIG.read_bytes() + evidence.training_code().encode()).hexdigest()[:8]
    name = f"{run_name(read_yaml(CONFIG)['run'])}-{digest}"
    for number in itertools.count(1):
        yield Record(runs_folder() / (name if number == 1 else f"{name}-{number}"))


def append(path: Path, content: Mapping[str, Any]) -> None:
    """Append one line of JSON, whole or not at all; raises OSError where it does not fit. One process writes a file."""
    line = json.dumps(content, ensure_ascii=False).encode() + b"\n"
    with path.open("ab+", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        if end and os.pread(file.fileno(), 1, end - 1) != b"\n":
            line = b"\n" + line  # The last process was killed while it wrote its line.
        try:
            while line:
                line = line[file.write(line) :]
        except OSError:
            file.truncate(end)
            raise


def read(path: Path, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
    """Return the lines from byte `offset` on, and where the next begins. A line that is being written is left out."""
    if not path.exists():
        return [], 0
    with path.open("rb") as file:
        file.seek(offset)
        content = file.read()
    whole = content[: content.rfind(b"\n") + 1]
    lines = []
    for line in whole.split(b"\n")[:-1]:
        with suppress(ValueError):  # A kill or a full disk cut it short.
            lines.append(json.loads(line))
    return lines, offset + len(whole)


def keep(source: Path, target: Path) -> None:
    """Replace `target` by a copy of the file or folder `source`, with its times; of a model, by hard links.

    Stages replace models and change none in place. On another disk a model is copied, too.
    """

    def copy(file: str, name: str) -> None:
        if source == MODEL:
            link_or_copy(os.path.realpath(file), name)
        else:
            shutil.copy2(file, name)

    with writing(target) as temporary:
        if source.is_dir():
            shutil.copytree(source, temporary, copy_function=copy)
        else:
            copy(str(source), str(temporary))


def signature(paths: Iterable[Path]) -> str:
    """Return a hash of names, sizes and times of files, folders opened."""
    files = [file for path in sorted(paths) for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


def now() -> int:
    """Return the time in milliseconds since 1970, as MLflow has it."""
    return time.time_ns() // 1_000_000
