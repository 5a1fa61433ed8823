"""Imports of large libraries without Python's garbage collector, which takes a fifth of a short command's time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Import inside this block: what exists at its end is never looked at by the garbage collector again.

    Modules and their contents live as long as the process. Python would scan torch's million objects several times
    while they are imported, and again at exit.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
