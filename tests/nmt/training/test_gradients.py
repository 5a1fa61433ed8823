"""Gradients of one process: what is left of a pass, what an update begins with. Several: tests/distributed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nmt.training.distributed import World
from nmt.training.gradients import Gradients

ALONE = World(0, 1, torch.device("cpu"))


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.tensor([float(number)])) for number in (1, 2, 3)]


def test_an_update_begins_without_gradients_and_adds_its_passes() -> None:
    first, second, unused = given = parameters()
    gradients = Gradients(given, ALONE)
    first.grad = torch.tensor([99.0])
    gradients.start()
    assert [parameter.grad for parameter in given] == [None] * 3
    for last in (False, True):
        gradients.expect([first, second], last)
        (first * second).sum().backward()
        assert list(gradients.pending) == []
    found = gradients.finish()
    assert [gradient.item() for gradient in found] == [4.0, 2.0]
    assert found[0] is first.grad
    assert unused.grad is None


class Full(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, *gradients: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("pretended")


def test_a_pass_that_fails_leaves_those_that_it_has_not_reached_in_order() -> None:
    first, second, third = given = parameters()
    gradients = Gradients(given, ALONE)
    gradients.start()
    gradients.expect(given, last=True)
    with pytest.raises(torch.OutOfMemoryError):
        (third * Full.apply(first * second)).sum().backward()
    assert [one is other for one, other in zip(gradients.pending, (first, second), strict=True)] == [True, True]
    assert third.grad is not None
    # The next pass is of those alone.
    pending = list(gradients.pending)
    gradients.expect(pending, last=True)
    (third * first * second).sum().backward(inputs=pending)
    assert [gradient.item() for gradient in gradients.finish()] == [6.0, 3.0, 2.0]
