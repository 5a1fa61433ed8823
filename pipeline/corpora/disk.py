"""Explain a full disk in one sentence."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nmt.config import InputError

IN_CACHE = "nothing half-written is left, and earlier results are in DVC's cache"
"""For stages that write a whole folder: DVC removed the earlier one before the stage, or it is unchanged."""


@contextmanager
def explain_full_disk(kept: str, *outputs: Path) -> Iterator[None]:
    """Turn an OSError about a full disk into an InputError: the file or `outputs`, what to do, and what is `kept`."""
    try:
        yield
    except OSError as error:
        # The disk is full, the user's quota is, or the process or the disk allows no larger file.
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        where = error.filename or f"the disk of {' or of '.join(map(str, outputs))}"
        raise InputError(f"{error.strerror}: {where}; make room and run again: {kept}") from error
