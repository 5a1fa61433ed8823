"""An output file that appears when it is complete; an interrupted one can be continued.

Until then its text is in `.NAME.part`, and `.NAME.part.json` records how many lines and bytes of that are complete.
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
"""Time between two records of the progress."""
_NO_EFFECT = {"output", "resume", "batch_tokens", "window", "device", "input", "model", "ensemble"}
"""Options that do not change the text, or that are fingerprinted by the content of their files."""


def fingerprint(options: Mapping[str, Any], folders: Sequence[Path], source: Path | None) -> str:
    """Return a hash of all that an output is a function of: options, models and the text."""
    parts = [f"{key}={value}" for key, value in sorted(options.items()) if key not in _NO_EFFECT]
    for folder in folders:
        parts += [f"{file.name} {sha256_of(file)}" for file in sorted(folder.rglob("*")) if file.is_file()]
    if source is not None:
        parts.append(sha256_of(source))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class Partial:
    """An incomplete output file."""

    def __init__(self, path: Path, identity: str) -> None:
        """Name the files of the output `path`; `identity` is its fingerprint. `begin` opens them."""
        self.path, self.identity = path, identity
        self.part = path.with_name(f".{path.name}.part")
        self.record = path.with_name(f".{path.name}.part.json")

    def begin(self, *, resume: bool) -> int:
        """Return how many lines of the source are done, 0 if not resumed; raise InputError for another identity."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        done = size = 0
        if resume and self.record.exists() and self.part.exists():
            try:
                recorded = json.loads(self.record.read_text(encoding="utf-8"))
            except ValueError as error:
                raise InputError(f"{self.record} is damaged: leave --resume out to begin anew") from error
            if recorded["identity"] != self.identity:
                raise InputError(
                    f"{self.part} was begun from another text, model or options: "
                    "give those again, or leave --resume out to begin anew"
                )
            done, size = int(recorded["lines"]), int(recorded["bytes"])
        else:
            self.record.unlink(missing_ok=True)
        self.file = self.part.open("r+b" if done else "wb")
        # Text after the last record may end within a line.
        self.file.truncate(size)
        self.file.seek(size)
        self.recorded_at = time.monotonic()
        return done

    def close(self) -> None:
        """Close the file and leave it for a later `begin`."""
        self.file.close()

    def write(self, text: str) -> int:
        """Append text."""
        return self.file.write(text.encode())

    def line(self, number: int) -> None:
        """Record that `number` lines of the source are done, if SECONDS have passed since the last record."""
        if time.monotonic() - self.recorded_at < SECONDS:
            return
        self._flush()
        state = {"identity": self.identity, "lines": number, "bytes": self.file.tell()}
        with writing(self.record) as temporary:
            temporary.write_text(json.dumps(state), encoding="utf-8")
        self.recorded_at = time.monotonic()

    def _flush(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())

    def finish(self) -> None:
        """Close the complete file and rename it to its path."""
        self._flush()
        self.file.close()
        os.replace(self.part, self.path)
        self.record.unlink(missing_ok=True)
