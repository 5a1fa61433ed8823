"""What is tracked of one pipeline run, on disk before anyone is told: a folder of events in order, kept until sent.

<state root>/tracking/<run>/
    events.jsonl    one event a line, only ever appended to: {"time": ms, "stage": .., "kind": .., ...}
    config.yaml     the resolved configuration
    artifacts/      copies of the files and folders to keep with the run, its model among them
    sent.json       how far the events were sent, and where to
    lock            shared by the stages at work
    complete        stands here once the last stage is through
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from nmt.common.files import writing
from nmt.config import InputError

Event = dict[str, Any]
Item = TypeVar("Item")

PATIENCE = "30"
"""Seconds that the end of a stage waits for what it measured to be sent, where `$WMT_TRACKING_PATIENCE` is not set."""
SLOWEST = 5e6
"""Bytes a second of a server that is waited for."""


class Spool:
    """The folder of one pipeline run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events = folder / "events.jsonl"
        self.config = folder / "config.yaml"
        self.artifacts = folder / "artifacts"

    def make(self, config: bytes) -> None:
        """Create what is missing. A folder whose run is complete steps aside: this is another run of the same."""
        if self.is_complete():
            self.folder.rename(self.folder.with_name(f"{self.folder.name}.{time.time_ns()}"))
        self.artifacts.mkdir(parents=True, exist_ok=True)
        if not self.config.exists():
            with writing(self.config) as temporary:
                temporary.write_bytes(config)

    def append(self, stage: str, kind: str, **content: Any) -> None:
        """Add one event, whole even where two processes append at once; one that does not fit raises OSError."""
        event = {"time": time.time_ns() // 1_000_000, "stage": stage, "kind": kind, **content}
        line = json.dumps(event, ensure_ascii=False).encode() + b"\n"
        with self.events.open("ab+", buffering=0) as file:
            # Alone, until the file is closed: what is cut off below must not be another process's event.
            fcntl.flock(file, fcntl.LOCK_EX)
            end = file.seek(0, os.SEEK_END)
            if end and os.pread(file.fileno(), 1, end - 1) != b"\n":
                line = b"\n" + line  # The last process was killed within its line.
            try:
                while line:
                    line = line[file.write(line) :]
            except OSError:
                file.truncate(end)
                raise

    def keep(self, path: Path, name: str) -> None:
        """Keep a file or a folder under artifacts/`name`: the original may be gone when it is sent."""
        target = self.artifacts / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with writing(target) as temporary:
            if path.is_dir():
                shutil.copytree(path, temporary, copy_function=_link)
            else:
                _link(str(path), str(temporary))

    def waiting(self) -> int:
        """Bytes of the files kept."""
        return sum(path.stat().st_size for path in self.artifacts.rglob("*") if path.is_file())

    def read(self, offset: int = 0) -> tuple[list[Event], int]:
        """The events from byte `offset` on, and where the next begin. A line still being written waits."""
        if not self.events.exists():
            return [], 0
        with self.events.open("rb") as file:
            file.seek(offset)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        events = []
        for line in whole.split(b"\n")[:-1]:
            # A line that a kill or a full disk cut short is no event: no later stage may fail of it.
            with suppress(ValueError):
                events.append(json.loads(line))
        return events, offset + len(whole)

    def ending(self, stage: str | None = None) -> str:
        """The status that the last stage (or `stage`) ended with; KILLED where it did not live to tell."""
        marks = [event for event in self.read()[0] if event["kind"] in {"begin", "end"}]
        told = [event.get("status", "KILLED") for event in marks if stage is None or event["stage"] == stage]
        return str(told[-1]) if told else "KILLED"

    def state(self) -> dict[str, Any]:
        """How far the events were sent: {"uri", "run", "offset", "status"}, or nothing."""
        path = self.folder / "sent.json"
        return dict(json.loads(path.read_bytes())) if path.exists() else {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Remember how far the events were sent."""
        with writing(self.folder / "sent.json") as temporary:
            temporary.write_text(json.dumps(state), encoding="utf-8")

    def complete(self) -> None:
        """The last stage of the run is through: the next one with this configuration is another run."""
        (self.folder / "complete").touch()

    def is_complete(self) -> bool:
        """Whether `complete` was called."""
        return (self.folder / "complete").exists()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Hold the run's lock with the other stages at work; the system lets go of it however a process ends."""
        with (self.folder / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield

    def is_dead(self) -> bool:
        """Whether no stage of this run is at work."""
        with (self.folder / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True


def _link(source: str, target: str) -> None:
    """A second name for the same bytes, or a copy on another disk: stages replace files, and change none in place."""
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        shutil.copyfile(source, target)


def patience(spool: Spool | None = None) -> int:
    """Seconds that the end of a stage waits for the spool to be sent; raises InputError where they are no number."""
    told = os.environ.get("WMT_TRACKING_PATIENCE", PATIENCE)
    if not told.isdecimal():
        raise InputError(f"WMT_TRACKING_PATIENCE is {told!r}: it must be a whole number of seconds, or unset")
    return round(float(told) + (spool.waiting() / SLOWEST if spool else 0))


def warn(stage: str, problem: str, spool: Spool) -> None:
    """The one line about tracking that a stage prints."""
    print(f"{stage}: tracking: {problem}: kept in {spool.folder}, sent with a later run", file=sys.stderr, flush=True)


@contextmanager
def alone(path: Path) -> Iterator[bool]:
    """Hold `path` as a lock; yields False where another process holds it."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def flat(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings and lists, with dotted keys."""
    if isinstance(content, Mapping | list) and content:
        for key, value in content.items() if isinstance(content, Mapping) else enumerate(content):
            yield from flat(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, content


def slices(items: Sequence[Item], length: int) -> Iterator[Sequence[Item]]:
    """Runs of at most `length` items."""
    for start in range(0, len(items), length):
        yield items[start : start + length]


def spools(root: Path) -> list[Spool]:
    """Those under `root`, oldest first."""
    return [Spool(path.parent) for path in sorted(root.glob("*/events.jsonl"), key=lambda path: path.stat().st_mtime)]


class SpoolTracker:
    """Keeps what a stage tells in the run's spool. Its own failures are told once and stop nothing."""

    def __init__(self, stage: str, place: Callable[[], Path | None], config: Path, prefix: str = "") -> None:
        self.stage, self.place, self.config = stage, place, config
        self.prefix = prefix
        """Of the names of numbers that belong to no update: two stages may measure things of one name."""
        self.spool: Spool | None = None
        self.told = False
        self.known: dict[tuple[str, int], float] = {}
        self.held = ExitStack()
        self.opening = threading.RLock()

    def metrics(self, values: Mapping[str, float], update: int | None = None) -> None:
        """See `Tracker`. What a resumed training measures a second time, to the same value, is told once."""
        if update is not None:
            self.open()
            values = {key: value for key, value in values.items() if self.known.get((key, update)) != value}
            self.known.update({(key, update): value for key, value in values.items()})
        else:
            values = {f"{self.prefix}{key}": value for key, value in values.items()}
        if values:
            self.add("metrics", values=dict(values), update=update)

    def tags(self, values: Mapping[str, str]) -> None:
        """See `Tracker`."""
        self.add("tags", values=dict(values))

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """See `Tracker`."""
        name = f"{folder}/{path.name}" if folder else path.name
        with self.warning():
            if spool := self.open():
                spool.keep(path, name)
                spool.append(self.stage, "artifact", name=name)

    def table(self, name: str, content: Mapping[str, Any]) -> None:
        """Keep a table: {"columns": [..], "data": [[..], ..]}."""
        with self.warning():
            if spool := self.open():
                with writing(spool.artifacts / name) as temporary:
                    temporary.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
                spool.append(self.stage, "artifact", name=name)
                self.tags({"mlflow.loggedArtifacts": json.dumps([{"path": name, "type": "table"}])})

    def model(self, folder: Path, **values: Any) -> None:
        """Keep the run's model, to be registered; pipeline/tracking/registry.py says what `values` holds."""
        with self.warning():
            if spool := self.open():
                spool.keep(folder, "model")
                self.add("model", name="model", values={**values, "time": time.time_ns() // 1_000_000})

    def add(self, kind: str, **content: object) -> None:
        """Append an event."""
        with self.warning():
            if spool := self.open():
                spool.append(self.stage, kind, **content)

    def close(self) -> None:
        """Let go of the run's lock."""
        self.held.close()

    def open(self) -> Spool | None:
        """The spool, from the first event on: when `resolve` starts, the configuration is not there yet."""
        with self.opening, self.warning():
            if self.spool is None and (folder := self.place()) is not None:
                spool = Spool(folder)
                spool.make(self.config.read_bytes())
                self.held.enter_context(spool.at_work())
                spool.append(self.stage, "begin")
                for event in spool.read()[0]:
                    if event["kind"] == "metrics" and event["update"] is not None:
                        self.known.update({(key, event["update"]): value for key, value in event["values"].items()})
                self.spool = spool
        return self.spool

    @contextmanager
    def warning(self) -> Iterator[None]:
        """Tell the first error of the disk, and go on."""
        try:
            yield
        except OSError as error:
            if not self.told:
                print(f"{self.stage}: tracking: {error}; the stage goes on without it", file=sys.stderr)
            self.told = True
