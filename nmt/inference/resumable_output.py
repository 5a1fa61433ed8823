"""An output file that appears when it is whole, and can be gone on with when its making was interrupted.

Until then it grows beside its place as `.NAME.part`; `.NAME.part.json` says how much of that counts.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmt.common.files import sha256_of, writing
from nmt.config import InputError

SECONDS = 5.0
"""Between two records of how far it is."""
_DECIDES_NOTHING = {"output", "resume", "batch_tokens", "window", "device", "input", "model", "ensemble"}


def fingerprint(options: Mapping[str, Any], folders: Sequence[Path], source: Path | None) -> str:
    """What decides the bytes of an output: options, models and the text."""
    parts = [f"{key}={value}" for key, value in sorted(options.items()) if key not in _DECIDES_NOTHING]
    for folder in folders:
        parts += [f"{file.name} {sha256_of(file)}" for file in sorted(folder.rglob("*")) if file.is_file()]
    if source is not None:
        parts.append(sha256_of(source))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class Partial:
    """A text file in the making."""

    def __init__(self, path: Path, identity: str) -> None:
        """`identity` is the fingerprint of what it is made from."""
        self.path, self.identity = path, identity
        self.growing = path.with_name(f".{path.name}.part")
        self.record = path.with_name(f".{path.name}.part.json")

    def begin(self, *, resume: bool) -> int:
        """Open it; returns how many lines of the source are done. Raises InputError where it was made otherwise."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        done = size = 0
        if resume and self.record.exists() and self.growing.exists():
            try:
                told = json.loads(self.record.read_text(encoding="utf-8"))
            except ValueError as error:
                raise InputError(f"{self.record} is damaged: leave --resume out to begin anew") from error
            if told["identity"] != self.identity:
                raise InputError(
                    f"{self.growing} was begun from another text, model or options: "
                    "give those again, or leave --resume out to begin anew"
                )
            done, size = int(told["lines"]), int(told["bytes"])
        else:
            # It tells of lines that this file does not hold.
            self.record.unlink(missing_ok=True)
        self.file = self.growing.open("r+b" if done else "wb")
        # What came after the last record may end in half a line.
        self.file.truncate(size)
        self.file.seek(size)
        self.told = time.monotonic()
        return done

    def close(self) -> None:
        """Leave it as it is, to be gone on with."""
        self.file.close()

    def write(self, text: str) -> int:
        """Add text."""
        return self.file.write(text.encode())

    def line(self, number: int) -> None:
        """Say that so many lines of the source are done; it is recorded every few seconds."""
        if time.monotonic() - self.told < SECONDS:
            return
        self.file.flush()
        os.fsync(self.file.fileno())
        state = {"identity": self.identity, "lines": number, "bytes": self.file.tell()}
        with writing(self.record) as temporary:
            temporary.write_text(json.dumps(state), encoding="utf-8")
        self.told = time.monotonic()

    def finish(self) -> None:
        """Put the file in its place."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        os.replace(self.growing, self.path)
        self.record.unlink(missing_ok=True)
