"""How many processes train, and errors that only say that another is gone. Several processes: tests/distributed."""

from __future__ import annotations

import pytest
from torch import distributed

from nmt.training.distributed import join_world, most_processes, peer_is_lost


@pytest.mark.parametrize(
    ("available", "shards", "count"), [(1, 1, 1), (3, 16, 2), (4, 16, 4), (15, 16, 8), (16, 16, 16), (9, 2, 2)]
)
def test_most_processes_are_a_power_of_two_and_at_most_the_shards(available: int, shards: int, count: int) -> None:
    assert most_processes(available, shards) == count


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
