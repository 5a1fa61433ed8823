"""A full disk, told in one sentence."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nmt.config import InputError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""No room on the disk, none left of the user's share of it, a file larger than the process or the disk allows."""

IN_CACHE = "nothing half-written is left, and earlier results are in DVC's cache"
"""Where a whole folder is written: DVC removes the earlier one beforehand; where it did not, that one still stands."""


@contextmanager
def full_disk_told(kept: str, *places: Path) -> Iterator[None]:
    """Turn a disk's refusal into InputError: where, and what to do; `kept` says what is not lost.

    `places` are where the caller writes, for errors that do not say which file they met.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        where = error.filename or f"the disk of {' or of '.join(map(str, places))}"
        raise InputError(f"{error.strerror}: {where}; make room and run again: {kept}") from error
