"""The states of one training in a store: each whole or not at all.

    <training>/objects/<sha256>               the content of a file; written once
    <training>/states/update-<number>.json    a manifest: the names, sizes and hashes of a state's files; written last
    <training>/lease.json                     see lease.py

States share objects, so that checkpoints for averaging and logs that did not change are uploaded once. A state has all
files that a bare machine needs: weights, optimizer moments, checkpoints for averaging, and the logs.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from nmt.common.files import read_yaml, writing
from nmt.common.processes import TRAINERS
from nmt.training import chain, checkpoint
from nmt.training.history import CHAIN
from pipeline.training.bucket import Bucket

KEPT = 2
"""States that stay in the store: if an object of the newest is damaged, the one before is used."""
OWNER = "lease-owner"
"""The file in a training's folder that names the owner of its lease."""
LOCAL = frozenset(("lock", "interrupted", "failed.json", "rendezvous", OWNER, TRAINERS))
"""Files of a training's folder that say something of this machine's attempt only."""
JOB, DONE = "job.yaml", "done.json"
Opened = io.BufferedReader | io.BytesIO
NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*")


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    size: int
    sha256: str


class Manifest(BaseModel):
    """The files of a state, by their paths in the training's folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    update: int
    files: dict[str, _File]


class DamagedError(Exception):
    """A state in the store is not whole."""


class RemoteStates:
    """The states of the training `name` in a bucket."""

    def __init__(self, bucket: Bucket, name: str) -> None:
        self.bucket, self.name = bucket, name
        self._hashes: dict[tuple[int, int, int], str] = {}
        """sha256 by inode, size and time: checkpoints do not change."""

    def updates(self) -> list[int]:
        """Return the updates of the states in the store, the newest first."""
        names = self.bucket.sizes(f"{self.name}/states/")
        return sorted(
            (int(found[1]) for name in names if (found := re.fullmatch(r"update-(\d+)\.json", name))), reverse=True
        )

    def push(
        self,
        folder: Path,
        give_up: Callable[[int], bool] = lambda _: False,
        confirm: Callable[[], bool] = lambda: True,
    ) -> int | None:
        """Upload the newest state of a training's folder; return its update, or None if nothing was uploaded.

        `give_up` is called with the state's update before each file, `confirm` before the state appears.
        """
        with ExitStack() as stack:
            opened = _open_newest(folder, stack)
            if opened is None:
                return None
            update, files = opened
            described = {name: _File(size=_size(file), sha256=self._sha256(file)) for name, file in files.items()}
            stored = self.bucket.sizes(f"{self.name}/objects/")
            for name, file in files.items():
                needed = described[name]
                if stored.get(needed.sha256) == needed.size:
                    continue
                if give_up(update):
                    return None
                file.seek(0)
                self.bucket.upload(self._object(needed), file)
                stored[needed.sha256] = needed.size
        if not confirm():
            return None
        content = Manifest(update=update, files=described).model_dump_json(indent=1)
        self.bucket.write(self._manifest(update), content.encode())
        return update

    def prune(self) -> None:
        """Delete all but the newest states, and objects of no state. Only the owner of the lease may do so."""
        updates = self.updates()
        for update in updates[KEPT:]:
            self.bucket.delete(self._manifest(update))
        kept: set[str] = set()
        for update in updates[:KEPT]:
            with contextlib.suppress(DamagedError):
                kept |= {file.sha256 for file in self._read(update).files.values()}
        for sha256 in self.bucket.sizes(f"{self.name}/objects/").keys() - kept:
            self.bucket.delete(f"{self.name}/objects/{sha256}")

    def pull(self, folder: Path) -> int | None:
        """Bring a training's folder to the newest whole state in the store, if that is newer; return its update.

        Files appear one after the other, the state itself last; a killed pull is repeated.
        """
        for update in self.updates():
            if update <= checkpoint.trained(folder):
                return None
            with tempfile.TemporaryDirectory(prefix=".restored.", suffix=".tmp", dir=folder) as scratch:
                try:
                    self._download(update, Path(scratch))
                except DamagedError as error:
                    # Deleted, so that it does not take the place of the whole ones that follow.
                    self.bucket.delete(self._manifest(update))
                    print(f"train: {error}; the state before it is taken", flush=True)
                    continue
                _place(Path(scratch), folder)
            return update
        return None

    def _download(self, update: int, scratch: Path) -> None:
        """Download a state's files and check their hashes; leave out a damaged checkpoint. Raises DamagedError."""
        for name, file in self._read(update).files.items():
            target = scratch / name
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._download_file(update, name, file, target)
            except DamagedError as error:
                # States share checkpoints, which training does not need.
                if not name.startswith("checkpoints/"):
                    raise
                target.unlink()
                print(f"train: {error}: the average will be without it", flush=True)

    def _download_file(self, update: int, name: str, file: _File, target: Path) -> None:
        for attempt in (1, 2):
            with target.open("w+b") as opened:
                try:
                    self.bucket.download(self._object(file), opened)
                except FileNotFoundError as error:
                    raise DamagedError(f"update {update:,} in {self.bucket.url} lacks {name}") from error
                opened.seek(0)
                if hashlib.file_digest(opened, "sha256").hexdigest() == file.sha256:
                    return
            if attempt == 2:
                # Deleted, so that the next push writes it again.
                self.bucket.delete(self._object(file))
                raise DamagedError(f"update {update:,} in {self.bucket.url} has a damaged {name}")

    def _read(self, update: int) -> Manifest:
        found = self.bucket.read(self._manifest(update))
        try:
            manifest = Manifest.model_validate_json(found.content if found else b"")
        except ValidationError as error:
            raise DamagedError(f"update {update:,} in {self.bucket.url} has no readable manifest") from error
        if manifest.update != update or not all(map(NAME.fullmatch, manifest.files)):
            raise DamagedError(f"update {update:,} in {self.bucket.url} has the manifest of something else")
        return manifest

    def _manifest(self, update: int) -> str:
        return f"{self.name}/states/update-{update:08d}.json"

    def _object(self, file: _File) -> str:
        return f"{self.name}/objects/{file.sha256}"

    def _sha256(self, file: Opened) -> str:
        if isinstance(file, io.BytesIO):
            return hashlib.sha256(file.getbuffer()).hexdigest()
        status = os.fstat(file.fileno())
        key = status.st_ino, status.st_size, status.st_mtime_ns
        if key not in self._hashes:
            self._hashes[key] = hashlib.file_digest(file, "sha256").hexdigest()
        return self._hashes[key]


def _size(file: Opened) -> int:
    return file.seek(0, os.SEEK_END) - file.seek(0)


def _open_newest(folder: Path, stack: ExitStack) -> tuple[int, dict[str, Opened]] | None:
    """Open the files of the newest state, by name; None if there is none, or a newer one is replacing it.

    Open files stay readable when training deletes them. Checkpoints that training has deleted since the state was
    saved are not needed: a training that resumes there writes newer ones in their place.
    """
    state = checkpoint.latest_resume(folder / "resume")
    if state is None:
        return None
    update = checkpoint.update_of(state)
    checkpoints = [
        path for path in checkpoint.checkpoints(folder / "checkpoints") if checkpoint.update_of(path) <= update
    ]
    files: dict[str, Opened] = {}
    try:
        for path in (*sorted(path for path in state.rglob("*") if path.is_file()), *checkpoints):
            files[path.relative_to(folder).as_posix()] = stack.enter_context(path.open("rb"))
        for path in sorted(folder.iterdir()):
            if path.is_file() and not path.name.startswith(".") and path.name not in LOCAL:
                # Training appends to logs, so these are copied. Resuming drops the records of later updates.
                files[path.name] = io.BytesIO(path.read_bytes())
    except FileNotFoundError:
        return None
    # States are deleted when a newer one is complete. While this one is the newest, none of its files is.
    return (update, files) if checkpoint.latest_resume(folder / "resume") == state else None


def _place(scratch: Path, folder: Path) -> None:
    """Rename a state's files into a training's folder, the state itself after what belongs to it."""
    same_job = _job(scratch / JOB) == _job(folder / JOB)
    logs = [path for path in scratch.iterdir() if path.is_file() and path.name not in {JOB, DONE}]
    checkpoints = sorted((scratch / "checkpoints").glob("*"))
    states = sorted((scratch / "resume").glob("*"))
    # A training that goes on after this state's end is not done.
    done = [scratch / DONE] if same_job and (scratch / DONE).exists() else []
    # States that were kept here belong to the chain from here, and another machine may have trained other weights.
    ours, theirs = ({link.update: link.link for link in chain.read_chain(each / CHAIN)} for each in (folder, scratch))
    for update, kept in chain.kept_states(folder).items():
        if ours.get(update) != theirs.get(update):
            shutil.rmtree(kept)
    for path in (*logs, *checkpoints, *states, *done):
        with writing(folder / path.relative_to(scratch)) as temporary:
            os.replace(path, temporary)


def _job(path: Path) -> object:
    """Return a job without its corpus, whose path differs between machines."""
    return {**read_yaml(path), "corpus": ""} if path.exists() else None
