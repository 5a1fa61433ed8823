"""Imports without the garbage collector."""

from __future__ import annotations

import gc

import pytest

from pipeline.imports import collection_paused


@pytest.fixture(autouse=True)
def unfrozen() -> None:
    gc.unfreeze()


def test_the_collector_pauses_and_leaves_what_was_imported_alone() -> None:
    collections = [generation["collections"] for generation in gc.get_stats()]
    with collection_paused():
        assert not gc.isenabled()
        made = [[number] for number in range(100_000)]
    assert collections == [generation["collections"] for generation in gc.get_stats()]
    assert gc.get_freeze_count() > len(made)
    assert gc.isenabled()


def test_a_failed_import_leaves_the_collector_running() -> None:
    with pytest.raises(ImportError), collection_paused():
        raise ImportError
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
