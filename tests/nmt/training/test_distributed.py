"""How many processes train, and errors that only say that another is gone. Several processes: tests/distributed."""

from __future__ import annotations

import pytest
import torch
from refusals import check_refusal
from torch import distributed
from trainings import MakeJob

from nmt.errors import InputError
from nmt.training.distributed import World, check_processes, join_world, most_processes, peer_is_lost
from nmt.training.settings import Job
from nmt.training.trainer import Trainer


@pytest.mark.parametrize(
    ("available", "shards", "count"), [(1, 1, 1), (3, 16, 2), (4, 16, 4), (15, 16, 8), (16, 16, 16), (9, 2, 2)]
)
def test_most_processes_are_a_power_of_two_and_at_most_the_shards(available: int, shards: int, count: int) -> None:
    assert most_processes(available, shards) == count
    check_processes(count, shards)
    if available != count:
        check_refusal("", check_processes, available, shards)


def test_processes_that_cannot_share_the_shards_do_not_train(tiny_job: MakeJob) -> None:
    with pytest.raises(InputError, match=r"^2 processes cannot train together: training\.shards is 1, .* use 1 proce"):
        Trainer(Job.model_validate(tiny_job(shards=1)), World(0, 2, torch.device("cpu")))


def test_processes_too_many_are_spare_and_join_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "2")
    with join_world(shards=16) as world:
        assert (world.spare, world.main, world.size) == (True, False, 2)
        assert not distributed.is_initialized()
    assert not World(1, 2, torch.device("cpu")).spare


def test_a_lost_process_is_told_from_other_errors() -> None:
    """gloo's own error: tests/distributed/test_ranks.py."""
    assert peer_is_lost(distributed.DistNetworkError("connection reset"))
    assert not peer_is_lost(RuntimeError("shapes differ"))
    assert not peer_is_lost(ValueError("gloo"))
