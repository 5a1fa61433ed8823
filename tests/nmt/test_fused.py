"""What CPUs compute in few calls against the model as it is written, with its gradients by autograd."""

import sys
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from model_folders import model_settings
from torch import Tensor

from nmt import fused, model, products
from nmt.ids import BOS
from nmt.loss import smoothed_cross_entropy
from nmt.model import Transformer
from nmt.packing import pack

SETTINGS = model_settings(N=2, d_model=32, d_ff=48, h=4, d_k=8, d_v=12, P_drop=0.3)
LENGTHS = (3, 9), (fused.VECTOR + 4,), (1, fused.VECTOR - 1)
"""Of the sentences of each block: softmax has another way for few keys."""


def loss_and_gradients(transformer: Transformer, precision: str) -> tuple[Tensor, dict[str, Tensor]]:
    random = np.random.default_rng(1)

    def block(lengths: tuple[int, ...], first: int | None = None) -> np.ndarray:
        rows = np.zeros((len(lengths), max(lengths)), dtype=np.int64)
        for row, length in zip(rows, lengths, strict=True):
            row[:length] = random.integers(5, 60, length)
            row[0] = first or row[0]
        return rows

    src = pack([block(lengths) for lengths in LENGTHS], 4, rounded=True)
    tgt_in = pack([block(lengths[::-1], BOS) for lengths in LENGTHS], 4, rounded=True)
    labels = tgt_in.ids[tgt_in.ids != 0]
    torch.manual_seed(2)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bfloat16"):
        states = transformer.states(src, tgt_in)
    loss, _ = smoothed_cross_entropy(states, transformer.output_table, labels, 0.1)
    names, parameters = zip(*transformer.named_parameters(), strict=True)
    return loss.detach(), dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.08)])
@pytest.mark.parametrize("changes", [{}, {"P_drop": 0.0, "projection_biases": False}, {"attention_dropout": 0.2}])
def test_the_model_and_its_gradients_are_the_same(
    precision: str, tolerance: float, changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same dropouts; of one sentence with one key, and of rows that were added, as well."""
    torch.manual_seed(1)
    transformer = Transformer(SETTINGS.model_copy(update=changes), 64).train()
    loss, gradients = loss_and_gradients(transformer, precision)
    for module in (model, products):
        monkeypatch.setattr(module, "has_own_backward", lambda x: False)
    expected, plain = loss_and_gradients(transformer, precision)
    assert loss.item() == pytest.approx(expected.item(), rel=tolerance / 10)
    for name, gradient in gradients.items():
        assert gradient.dtype == torch.float32
        if not name.endswith("W_K.bias"):  # The same for all keys, it changes no softmax.
            assert (gradient - plain[name]).norm() <= tolerance * plain[name].norm(), name


@pytest.mark.parametrize(("changes", "calls"), [({"d_v": 8}, 6), ({}, 0), ({"d_v": 8, "attention_dropout": 0.2}, 0)])
def test_flash_attention_is_the_same(changes: dict[str, object], calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for its kernel, which reads what the kernel reads; other widths and dropout do without it."""
    torch.manual_seed(1)
    transformer = Transformer(SETTINGS.model_copy(update=changes), 64).train()
    for module in (model, products):
        monkeypatch.setattr(module, "has_own_backward", lambda x: False)
    expected, plain = loss_and_gradients(transformer, "bfloat16")
    shapes = []

    def attn(q: Tensor, k: Tensor, v: Tensor, *sides: Any, window_size: tuple[int, int]) -> Tensor:
        shapes.append(q.shape)
        outputs, starts, longest = [], [pairwise(side.tolist()) for side in sides[:2]], sides[2:]
        for own, of in zip(*starts, strict=True):
            assert all(last - first <= most for (first, last), most in zip((own, of), longest, strict=True))
            of_sentence = (x[slice(*rows)].transpose(0, 1) for x, rows in ((q, own), (k, of), (v, of)))
            causal = {(-1, 0): True, (-1, -1): False}[window_size]
            output = torch.nn.functional.scaled_dot_product_attention(*of_sentence, is_causal=causal)
            outputs.append(output.transpose(0, 1).nan_to_num())
        return torch.cat(outputs)

    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", SimpleNamespace(varlen_attn=attn))
    monkeypatch.setitem(globals(), "pack", lambda *args, pack=pack, **how: replace(pack(*args, **how), has_flash=True))
    loss, gradients = loss_and_gradients(transformer, "bfloat16")
    assert len(shapes) == calls
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert loss.item() == pytest.approx(expected.item(), rel=0.008)
    for name, gradient in gradients.items():
        if not name.endswith("W_K.bias"):
            assert (gradient - plain[name]).norm() <= 0.08 * plain[name].norm(), name


def test_large_scores_do_not_overflow() -> None:
    scores = torch.tensor([[1e4, 1e4 - 1, -torch.inf], [-1e4, -torch.inf, -1e4]])
    torch.testing.assert_close(fused.softmax_(scores.clone()), scores.softmax(-1))


def test_a_model_in_bfloat16_has_gradients() -> None:
    transformer = Transformer(SETTINGS, 64).bfloat16().train()
    _, gradients = loss_and_gradients(transformer, "float32")
    assert all(gradient.dtype == torch.bfloat16 and gradient.isfinite().all() for gradient in gradients.values())


def test_weights_that_any_optimizer_changes_are_used() -> None:
    """Fused steps change them without a trace that torch could see."""
    torch.manual_seed(1)
    transformer = Transformer(SETTINGS.model_copy(update={"P_drop": 0.0}), 64).train()
    before, gradients = loss_and_gradients(transformer, "bfloat16")
    for name, parameter in transformer.named_parameters():
        parameter.grad = gradients[name]
    torch.optim.SGD(transformer.parameters(), lr=1e-4, fused=True).step()
    assert loss_and_gradients(transformer, "bfloat16")[0] < before
