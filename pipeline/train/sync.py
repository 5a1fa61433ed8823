"""Copy a training's states to a store while it trains; bring the newest one to a machine that has none.

With `WMT_STATE=s3://bucket/prefix`, or another URL of an object store that fsspec knows, `train/<fingerprint>/` below
it has the states and checkpoints of the training's folder by the same names, and for each whole state a marker, written
last: `states/update-<n>.json`, with the files' sha256 and the text of the logs. Nothing prevents two machines from
training the same: each would delete the other's states.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.dirfs import DirFileSystem

from nmt.common.files import link_or_copy, parse_yaml, read_yaml, scratch_folder, sha256_of
from nmt.config import InputError
from nmt.training import chain, checkpoint
from nmt.training.history import CHAIN
from pipeline.config.paths import state_store
from pipeline.train import launch

KEPT = 2
"""States that stay in the store: if the newest is damaged, the one before is used."""
JOB, DONE = "job.yaml", "done.json"
LOGS = ("history.jsonl", CHAIN, JOB, DONE)
POLL = 1.0  # seconds between two looks for a new state
RETRY = 10.0  # seconds between two attempts while the store fails
LAST_UPLOAD = 600.0  # seconds that the last upload may take


def torchrun(job: Path, watch: Callable[[], None]) -> int:
    """Run `launch.torchrun` on the job in folder `job`; with a store, resume from its state and upload new ones.

    Raises OSError if the store cannot be used at the start. A store that fails later stops nothing.
    """
    url = state_store()
    if url is None:
        return launch.torchrun(job, watch)
    if "@" in url or "?" in url:
        raise InputError("WMT_STATE must be a URL without credentials, as s3://bucket/prefix")
    try:
        store = StateStore(url, job.name)
        updates = _updates(job)
        if max(store.updates(), default=0) > updates:
            # A shorter training neither takes a longer one's state nor deletes it.
            store = StateStore(url, f"{job.name}-{updates}")
        if restored := store.pull(job):
            print(f"train: restored update {restored:,} from {url}", flush=True)
    except Exception as error:
        reason = f"{url} cannot be used ({_cause(error)}): check the address, the credentials and this machine's clock"
        raise OSError(errno.EIO, reason) from None  # boto's error may hold a signed request.
    with _uploading(store, job):
        # A finished training may still have to be uploaded.
        return 0 if (job / DONE).exists() else launch.torchrun(job, watch)


class StateStore:
    """The states of one training in a store. Methods raise what the store's file system raises."""

    def __init__(self, url: str, name: str) -> None:
        files, root = fsspec.url_to_fs(f"{url.rstrip('/')}/train/{name}")
        self.files = DirFileSystem(root, files)
        self._hashes: dict[tuple[int, int], str] = {}
        """sha256 by inode and time: the checkpoints of row `big` are 17 GB, and do not change."""

    def updates(self) -> list[int]:
        """Return the updates of the whole states, the newest first."""
        names = (Path(name) for name in self.files.find("states"))
        return sorted((checkpoint.update_of(name.with_suffix("")) for name in names), reverse=True)

    def push(self, job: Path) -> int:
        """Upload the newest state of the training in folder `job`, and delete old ones.

        Return its update, 0 if there is none or training has just replaced it.
        """
        state = checkpoint.latest_resume(job / "resume")
        if state is None:
            return 0
        update = checkpoint.update_of(state)
        earlier = [path for path in checkpoint.checkpoints(job / "checkpoints") if checkpoint.update_of(path) <= update]
        with scratch_folder(job / "sync") as scratch:
            try:
                for path in (*state.iterdir(), *earlier):
                    target = scratch / path.relative_to(job)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    link_or_copy(path, target)  # Training deletes the state while it is uploaded, but changes no file.
            except FileNotFoundError:
                return 0
            copies = {path.relative_to(scratch).as_posix(): path for path in scratch.rglob("*") if path.is_file()}
            # Resuming drops what logs have of later updates.
            logs = {name: (job / name).read_text(encoding="utf-8") for name in LOGS if (job / name).exists()}
            hashes = {name: self._sha256(path) for name, path in copies.items()}
            updates = self.updates()
            stored = self._read(updates[0])["files"] if updates else {}
            for name, path in copies.items():
                if stored.get(name) != hashes[name]:
                    self.files.put_file(str(path), name)
        self.files.pipe_file(_marker(update), json.dumps({"files": hashes, "logs": logs}).encode())
        self._prune()
        return update

    def pull(self, job: Path) -> int:
        """Bring folder `job` to the newest whole state if that is newer than its own; return its update, else 0."""
        for update in self.updates():
            if update <= checkpoint.trained(job):
                break
            with scratch_folder(job / "sync") as scratch:
                try:
                    marker = self._read(update)
                    for name, sha256 in marker["files"].items():
                        self._download(name, sha256, scratch)
                except (FileNotFoundError, LookupError, ValueError) as error:
                    print(f"train: update {update:,} in the store is damaged ({error}); trying the one before")
                    self.files.rm_file(_marker(update))
                    continue
                _place(scratch, marker["logs"], job)
            return update
        return 0

    def _download(self, name: str, sha256: str, folder: Path) -> None:
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{name} is outside of a training's folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        self.files.get_file(name, str(path))
        if sha256_of(path) != sha256:
            raise ValueError(f"{name} has changed")

    def _sha256(self, path: Path) -> str:
        key = path.stat().st_ino, path.stat().st_mtime_ns
        if key not in self._hashes:
            self._hashes[key] = sha256_of(path)
        return self._hashes[key]

    def _read(self, update: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.files.cat_file(_marker(update)))
        return found

    def _prune(self) -> None:
        updates = self.updates()
        for update in updates[KEPT:]:
            self.files.rm_file(_marker(update))
        needed = {name for update in updates[:KEPT] for name in self._read(update)["files"]}
        for name in {*self.files.find("resume"), *self.files.find("checkpoints")} - needed:
            self.files.rm_file(name)


def _marker(update: int) -> str:
    return f"states/update-{update:08d}.json"


def _updates(job: Path) -> int:
    return int(read_yaml(job / JOB)["training"]["updates"])


def _place(scratch: Path, logs: Mapping[str, str], job: Path) -> None:
    """Move a state into a training's folder, the state itself last: a kill before leaves none."""
    # The states that were kept here may be of other weights than those of the machine that trained on.
    chain.remove_later_states(job, 0)
    finished = parse_yaml(logs[JOB])["training"]["updates"] == _updates(job)  # If not, it is extended here.
    for name in logs.keys() - {JOB} - (set() if finished else {DONE}):
        (scratch / name).write_text(logs[name], encoding="utf-8")
    for path in (*scratch.glob("checkpoints/*"), *scratch.glob("*.json*"), *scratch.glob("resume/*")):
        target = job / path.relative_to(scratch)
        target.parent.mkdir(exist_ok=True)
        os.replace(path, target)


@contextlib.contextmanager
def _uploading(store: StateStore, job: Path) -> Iterator[None]:
    """Upload new states in the background; at the end, wait for the last one."""
    ended, uploaded, failing = threading.Event(), 0, False

    def attempt() -> None:
        nonlocal uploaded, failing
        try:
            uploaded = store.push(job)
            failing = False
        except Exception as error:
            if not failing:
                _warn(f"the store fails ({_cause(error)}); training goes on, and uploading is tried again")
            failing = True

    def upload() -> None:
        while not ended.wait(RETRY if failing else POLL):
            if checkpoint.trained(job) != uploaded:
                attempt()
        attempt()  # Also a state that is there already, with what training wrote after it.

    thread = threading.Thread(target=upload, name="upload of states", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(LAST_UPLOAD)
        if failing or uploaded != checkpoint.trained(job):
            _warn("the last state is on this machine only: `dvc repro --force --single-item train` here uploads it")


def _cause(error: Exception) -> str:
    """Return the kind of an error, with the text if the system or fsspec wrote it: boto's may hold credentials."""
    return f"{type(error).__name__}: {error}" if isinstance(error, OSError | ImportError) else type(error).__name__


def _warn(text: str) -> None:
    print(f"train: {text}", file=sys.stderr, flush=True)
