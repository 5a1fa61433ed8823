"""One process alone, and errors that only say that another is gone. Several processes: tests/distributed."""

from __future__ import annotations

import pytest
import torch
from torch import distributed

from nmt.training.distributed import World, join_world, peer_is_lost


def test_a_process_alone_agrees_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with join_world() as world:
        assert world == World(0, 1, torch.device("cpu"), None)
        assert world.main
        values = torch.tensor([1.0, 2.0])
        assert world.sum(values) is values
        assert values.tolist() == [1.0, 2.0]
        assert (world.any(True), world.any(False), world.minimum(-3), world.same(4)) == (True, False, -3, True)
        world.barrier()
    assert not World(1, 2, torch.device("cpu")).main


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (distributed.DistNetworkError("connection reset"), True),
        (RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer"), True),
        (RuntimeError("shapes differ"), False),
        (ValueError("gloo"), False),
    ],
)
def test_a_lost_process_is_told_from_other_errors(error: Exception, lost: bool) -> None:
    assert peer_is_lost(error) is lost
