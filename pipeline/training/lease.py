"""A lease in the store: only the machine that holds it continues the training whose state is there.

The lease is an object that names its owner. It expires when it was not written for `seconds()`, by the store's clock,
so that the clocks of the machines do not matter. Writes are conditional (If-None-Match, If-Match). A store that ignores
these conditions is detected, because it accepts the lease as a new object a second time. There the owner reads the
lease again after `SETTLE` seconds: the machine that wrote it last holds it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
import time
import uuid
from collections.abc import Iterator

from nmt.config import InputError
from pipeline.training.bucket import Bucket, Stored, StoreError

SETTLE = 3.0
"""Seconds after which a write by another machine is visible, in a store without conditional writes."""


def seconds() -> float:
    """Return `$WMT_LEASE_SECONDS`, by default 120: how long a machine that is lost keeps its training from others."""
    text = os.environ.get("WMT_LEASE_SECONDS", "120")
    if not text.isdecimal() or int(text) < 2:
        raise InputError(f"WMT_LEASE_SECONDS is {text!r}: it must be a whole number from 2 on; unset it for 120")
    return float(text)


class Lease:
    """The lease at `key`. `owner` names a training's folder: a machine that died gets its lease back earlier.

    A copied folder has the same owner, so a lease that is held is known by the process that wrote it.
    """

    def __init__(self, bucket: Bucket, key: str, owner: str) -> None:
        self.bucket, self.key, self.owner = bucket, key, owner
        self.process = uuid.uuid4().hex
        self.seconds = seconds()
        self.lost = False
        """Whether another machine has taken the lease over."""
        self._renewals = 0

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Acquire the lease, renew it in the background, and release it at the end.

        Raises InputError if another machine renews it: the machine trains. Raises StoreError if the store refuses every
        write of it.
        """
        self._acquire()
        ended = threading.Event()
        thread = threading.Thread(target=self._keep, args=(ended,), name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(timeout=self.seconds)
            with contextlib.suppress(StoreError, InputError):
                self._release()

    def _acquire(self) -> None:
        waited_for: str | None = None
        deadline = time.monotonic() + 2 * self.seconds
        while True:
            found = self.bucket.read(self.key)
            holder = _holder(found) if found else {}
            # Whoever holds it has renewed it twice in half of its time.
            valid = self.seconds / 2 if holder.get("owner") == self.owner else self.seconds
            if found is None or self._is_ours(found) or found.age > valid:
                if self._write(found):
                    break
                if time.monotonic() > deadline:
                    reason = f"the store refuses every write of {self.key}: give it conditional writes as S3 has them"
                    raise StoreError(errno.EIO, reason, self.bucket.url)
            elif waited_for is None:
                left = max(0.0, valid - found.age)
                print(
                    f"train: {holder['host']} had this training's lease {found.age:.0f} s ago: waiting {left:.0f} s",
                    flush=True,
                )
                waited_for = found.etag
            elif found.etag != waited_for:
                raise InputError(
                    f"{holder['host']} trains this already: wait for its end, or stop it ({self.bucket.url})"
                )
            time.sleep(min(1.0, self.seconds / 10))
        # A lease that exists is no new object: only a store that ignores conditions writes it here.
        if self.bucket.write(self.key, self._content(), new=True):
            time.sleep(SETTLE)
            found = self.bucket.read(self.key)
            if found is None or not self._is_ours(found):
                raise InputError(f"another machine has just begun to train this ({self.bucket.url}): wait for its end")

    def _keep(self, ended: threading.Event) -> None:
        while not ended.wait(self.seconds / 4):
            # A store that is away is reported by the upload of states; nobody else can get the lease from it either.
            with contextlib.suppress(StoreError, InputError):
                found = self.bucket.read(self.key)
                if found is not None and not self._is_ours(found):
                    self.lost = True
                    return
                self._write(found)

    def confirm(self) -> bool:
        """Return whether the lease is ours by what the store has now: this machine may have been suspended."""
        found = self.bucket.read(self.key)
        ours = found is not None and self._is_ours(found)
        self.lost = self.lost or (found is not None and not ours)
        return ours

    def _release(self) -> None:
        found = self.bucket.read(self.key)
        if found is not None and self._is_ours(found):
            self.bucket.delete(self.key)

    def _is_ours(self, found: Stored) -> bool:
        return _holder(found)["process"] == self.process

    def _write(self, found: Stored | None) -> bool:
        """Write the lease in place of what was found; return False if another machine was faster."""
        self._renewals += 1
        return self.bucket.write(self.key, self._content(), new=found is None, replaces=found.etag if found else None)

    def _content(self) -> bytes:
        # With the number each write has another version.
        content = {"owner": self.owner, "process": self.process, "host": os.uname().nodename}
        return json.dumps({**content, "renewals": self._renewals}).encode()


def _holder(found: Stored) -> dict[str, str]:
    """Return owner, process and host of a lease; of an object that is no lease, nobody's."""
    try:
        content = json.loads(found.content)
        return {name: str(content[name]) for name in ("owner", "process", "host")}
    except (ValueError, KeyError, TypeError):
        return {"owner": "", "process": "", "host": "another machine"}
