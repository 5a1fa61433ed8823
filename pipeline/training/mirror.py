"""Training whose states survive the machine: each saved state is uploaded to a store while training goes on.

`train` takes the place of `launch.train`. With a store (`WMT_STATE=s3://bucket/prefix`) it gets the training's lease,
restores the newest state if that is newer than the one on this machine, trains, and returns once the last state is
uploaded. A thread of the stage's process uploads: training itself knows nothing of it.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from nmt.common.files import read_yaml, writing
from nmt.config import InputError
from nmt.training import checkpoint
from pipeline.common import stage
from pipeline.training import launch
from pipeline.training.bucket import Bucket, StoreError
from pipeline.training.lease import Lease
from pipeline.training.remote_states import DONE, JOB, OWNER, RemoteStates

POLL = 1.0
"""Seconds between two looks at the training's folder."""
RETRY = 10.0
"""Seconds between two attempts while the store is away."""
PATIENCE = 30.0
"""Seconds that the end of training waits for a store that is away."""


def train(job: Path, watch: Callable[[], None]) -> int:
    """Run `launch.train` on the job in folder `job`; mirror its states in the store, if there is one.

    Raises InputError if the store's settings are wrong or another machine trains this, StoreError if it is away at the
    start. A store that is away later stops nothing.
    """
    url = stage.state_store()
    if url is None:
        return launch.train(job, watch)
    bucket = Bucket(url)
    states = RemoteStates(bucket, _name(bucket, job))
    lease = Lease(bucket, f"{states.name}/lease.json", _owner(job))
    with lease.held():
        update = states.pull(job)
        if update is not None:
            print(f"train: restored update {update:,} from {url}/{states.name}", flush=True)
            if (job / DONE).exists():
                return 0

        def watch_lease() -> None:
            if lease.lost:
                raise InputError(f"another machine trains this now ({url}/{states.name}): this one has stopped")
            watch()

        with uploading(states, lease, job):
            # A training that is finished may still have to be uploaded.
            return 0 if (job / DONE).exists() else launch.train(job, watch_lease)


def _name(bucket: Bucket, job: Path) -> str:
    """Return the training's name in the store; a shorter training does not take a longer one's state."""
    updates = int(read_yaml(job / JOB)["training"]["updates"])
    shorter = f"{job.name}-{updates}"
    return shorter if max(RemoteStates(bucket, job.name).updates(), default=0) > updates else job.name


def _owner(job: Path) -> str:
    """Return the name of this training's folder among all machines': a random one, written at the first start."""
    path = job / OWNER
    if not path.exists():
        with writing(path) as temporary:
            temporary.write_text(uuid.uuid4().hex, encoding="utf-8")
    return path.read_text(encoding="utf-8")


@contextlib.contextmanager
def uploading(states: RemoteStates, lease: Lease, job: Path) -> Iterator[None]:
    """Upload states in the background; at the end, wait for the last one."""
    uploads = Uploads(states, lease, job)
    thread = threading.Thread(target=uploads.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        uploads.ended.set()
        thread.join()


class Uploads:
    """Uploads each new state of a training's folder until `ended` is set, and then the last one."""

    def __init__(self, states: RemoteStates, lease: Lease, job: Path) -> None:
        self.states, self.lease, self.job = states, lease, job
        self.ended = threading.Event()
        self.uploaded = 0
        """The update of the last uploaded state."""
        self._failing: str | None = None

    def run(self) -> None:
        """Upload until the last state is in the store; give up `PATIENCE` seconds after the training has ended."""
        try:
            self._upload()
        finally:
            self._report_end()

    def _upload(self) -> None:
        deadline = None
        while not self.lease.lost:
            last = self.ended.is_set()
            if last and deadline is None:
                deadline = time.monotonic() + PATIENCE
            succeeded = self._attempt(last)
            if last and (succeeded or time.monotonic() > (deadline or 0.0)):
                break
            if last:
                time.sleep(POLL)
            else:
                self.ended.wait(POLL if succeeded else RETRY)

    def _attempt(self, last: bool) -> bool:
        """Upload the newest state unless that is done; the last one again, with what training wrote after it."""
        try:
            if last or checkpoint.trained(self.job) != self.uploaded:
                update = self.states.push(self.job, self._is_superseded, self.lease.confirm)
                if update is not None:
                    self.uploaded = update
                    if self.lease.confirm():  # Another machine may be uploading what this one would delete.
                        self.states.prune()
        except (OSError, InputError) as error:  # A StoreError, or one of this machine's disks.
            text = error.strerror if isinstance(error, StoreError) else str(error)
            if text != self._failing:
                self._failing = text
                self._say(f"{text}; training goes on, and its states are uploaded once the store takes them")
            return False
        if self._failing is not None:
            self._failing = None
            self._say("the store takes states again")
        return not last or self.uploaded == checkpoint.trained(self.job)

    def _is_superseded(self, update: int) -> bool:
        """Return whether training has ended at another update: then that state is uploaded instead."""
        return self.ended.is_set() and checkpoint.trained(self.job) != update

    def _report_end(self) -> None:
        trained = checkpoint.trained(self.job)
        if self.lease.lost or trained == 0:
            return
        if self.uploaded == trained:
            self._say(f"update {trained:,} is in the store")
        else:
            done = (self.job / DONE).exists()
            command = "`dvc repro --force --single-item train`" if done else "the same command"
            self._say(f"update {trained:,} is on this machine only: run {command} here to upload it")

    def _say(self, text: str) -> None:
        print(f"train: {self.states.bucket.url}: {text}", file=sys.stderr, flush=True)
