"""Imports without the garbage collector."""

from __future__ import annotations

import gc

import pytest

from pipeline.config.imports import collection_paused


def test_the_collector_pauses_leaves_what_was_imported_alone_and_runs_again() -> None:
    gc.unfreeze()
    with collection_paused():
        assert not gc.isenabled()
        made = [[number] for number in range(1000)]
    assert gc.get_freeze_count() > len(made)
    assert gc.isenabled()
    with pytest.raises(ImportError), collection_paused():
        raise ImportError
    assert gc.isenabled()
