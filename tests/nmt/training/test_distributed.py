"""How many processes train, and errors that only say that another is gone. Several processes: tests/distributed."""

import pytest
from torch import distributed

from nmt.training.distributed import join_world, peer_is_lost


def test_processes_too_many_are_spare_and_join_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "2")
    with join_world(shards=16) as world:
        assert (world.rank, world.size) == (2, 2)
        assert not distributed.is_initialized()


def test_a_lost_process_is_told_from_other_errors() -> None:
    """gloo's own error: tests/distributed/test_ranks.py."""
    assert peer_is_lost(distributed.DistNetworkError("connection reset"))
    assert not peer_is_lost(RuntimeError("shapes differ"))
    assert not peer_is_lost(ValueError("gloo"))
