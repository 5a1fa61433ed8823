"""An output file that appears when it is complete; an interrupted one can be continued.

Until then its text is in `.NAME.part`, and `.NAME.part.json` records how many lines and bytes of that are complete, and
the hash of the source's lines that they belong to. Later lines of the source may change before it is continued.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from nmt.common.files import output_file, sha256_of, writing
from nmt.config import InputError

SECONDS = 5.0
"""Time between two records of the progress."""
_NO_EFFECT = {"command", "output", "resume", "batch_tokens", "window", "device", "input", "model", "ensemble"}
"""Options that do not change the output, and those whose files are hashed: the models', and the source's lines."""


def fingerprint(options: Mapping[str, Any], folders: Sequence[Path]) -> str:
    """Return a hash of all that an output is a function of, but the text: options and models."""
    parts = [f"{key}={value}" for key, value in sorted(options.items()) if key not in _NO_EFFECT]
    for folder in folders:
        parts += [f"{file.name} {sha256_of(file)}" for file in sorted(folder.rglob("*")) if file.is_file()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class Partial:
    """An incomplete output file."""

    def __init__(self, path: Path, identity: str) -> None:
        """Name the files of the output `path`; `identity` is its fingerprint. `begin` opens them.

        Raises InputError as `output_file` does.
        """
        path = output_file(path)
        self.path, self.identity = path, identity
        self.part = path.with_name(f".{path.name}.part")
        self.record = path.with_name(f".{path.name}.part.json")

    def begin(self, source: Iterator[str], *, resume: bool) -> int:
        """Return how many lines of the source are done, 0 if not resumed, and take them from `source`.

        Raises InputError where options or models have changed, or these lines, or another process writes the output.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        begun = self.part.exists()
        self.file = self._locked()
        try:
            if resume and begun and self.record.exists():
                self.complete = self._recorded(source)
            else:
                self.record.unlink(missing_ok=True)
                self.complete = 0, 0, hashlib.sha256()
                """Lines of the source that are done, bytes of their text, and the hash of these lines."""
        except BaseException:
            self.file.close()
            raise
        done, size, _ = self.complete
        # Text after the last record may end within a line.
        self.file.truncate(size)
        self.file.seek(size)
        self.recorded_at = time.monotonic()
        return done

    def _locked(self) -> BinaryIO:
        """Open the incomplete file and lock it until it is closed, where the disk has locks."""
        while True:
            file = os.fdopen(os.open(self.part, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.close()
                raise InputError(
                    f"another process writes {self.path}: wait until it has ended, or give another --output"
                ) from error
            except OSError:
                return file
            # Another process may have renamed the file before the lock was free.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), self.part.stat()):
                    return file
            file.close()

    def _recorded(self, source: Iterator[str]) -> tuple[int, int, hashlib._Hash]:
        """Return what the record says is complete, and take its lines from `source`."""
        text = hashlib.sha256()
        try:
            recorded = json.loads(self.record.read_text(encoding="utf-8"))
            done, size, identity = int(recorded["lines"]), int(recorded["bytes"]), recorded["identity"]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{self.record} is damaged: leave --resume out to begin anew") from error
        if self.part.stat().st_size < size:
            raise InputError(
                f"{self.part} is shorter than the {size:,} bytes of its record: leave --resume out to begin anew"
            )
        for line in islice(source, done):
            text.update(line.encode() + b"\n")
        if (identity, recorded.get("text")) != (self.identity, text.hexdigest()):
            raise InputError(
                f"{self.part} was begun from another text, model or options: "
                "give those again, or leave --resume out to begin anew"
            )
        return done, size, text

    def close(self) -> None:
        """Record what is complete, unless `finish` was called, and close the file for a later `begin`."""
        if not self.file.closed:
            # A disk that is full keeps the record before this one.
            with suppress(OSError), self.file:
                self._record()

    def write(self, source: str, output: str) -> None:
        """Append the output for the next line of the source. Every SECONDS, record how many are done."""
        self.file.write(output.encode())
        done, _, text = self.complete
        text = text.copy()
        text.update(source.encode() + b"\n")
        # One assignment: an interrupt comes before it or after it.
        self.complete = done + 1, self.file.tell(), text
        if time.monotonic() - self.recorded_at >= SECONDS:
            self._record()

    def _record(self) -> None:
        done, size, text = self.complete
        self.file.truncate(size)  # A write that failed may have left a part of its output.
        self._flush()
        state = {"identity": self.identity, "lines": done, "bytes": size, "text": text.hexdigest()}
        with writing(self.record) as temporary:
            temporary.write_text(json.dumps(state), encoding="utf-8")
        self.recorded_at = time.monotonic()

    def _flush(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())

    def finish(self) -> None:
        """Rename the complete file to its path; it is locked until then."""
        self._flush()
        os.replace(self.part, self.path)
        self.record.unlink(missing_ok=True)
        self.file.close()
