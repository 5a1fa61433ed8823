"""The model on packed batches computes what it computes for padded sentences: states, losses, gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nmt.config import EOS, PAD, ModelSettings
from nmt.loss import block_loss, padded_block_loss, smoothed_cross_entropy
from nmt.model import Transformer
from nmt.training.batches import Corpus, make_batch, train_files
from nmt.training.packed.batches import PackedBatch, pack
from nmt.training.packed.forward import Layers, forward, to_rows, to_stream
from nmt.training.packed.shapes import Shape, arrange

WriteArrow = Callable[[Path, Sequence[Any]], None]
MODEL = {
    "N": 2, "d_model": 16, "d_ff": 24, "h": 2, "d_k": 8, "d_v": 6, "P_drop": 0.0, "attention_dropout": 0.0,
    "relu_dropout": 0.0, "positions": "sinusoidal", "position_layout": "interleaved", "max_positions": 80,
    "projection_biases": True, "initialisation": "glorot",
}  # fmt: skip
VOCABULARY = 30
PLAIN = Layers(compiled=False)


@pytest.fixture
def corpus(tmp_path: Path, write_arrow: WriteArrow) -> Corpus:
    """Pairs of 1 to 75 subwords, so that rows of 128 hold one to many of them."""
    random = np.random.default_rng(1)
    sizes = [(1, 1), (75, 70), (3, 60), (60, 3), *random.integers(2, 40, (20, 2)).tolist()]
    write_arrow(
        tmp_path / "train.00099.arrow",
        [tuple([*random.integers(4, VOCABULARY, size - 1).tolist(), EOS] for size in pair) for pair in sizes],
    )
    return Corpus(train_files(tmp_path))


def packed(corpus: Corpus, spare: int = 0, shards: int = 1) -> list[PackedBatch]:
    """All pairs as packed batches, with so much more room than they need."""
    pairs = np.arange(len(corpus))
    found = arrange(corpus.src_lengths, corpus.tgt_lengths, shards)
    needed = found.needed
    shape = Shape(needed.src + spare, needed.tgt + 2 * spare, needed.rows + spare // 4, needed.row_length)
    flat = pack(corpus, pairs, found, shape, range(shards), int(corpus.tgt_lengths.sum()))
    return [PackedBatch(shape, True, batch) for batch in flat]


def model_of(**changes: Any) -> Transformer:
    torch.manual_seed(2)
    return Transformer(ModelSettings.model_validate(MODEL | changes), VOCABULARY).double()


def gradients(loss: Tensor, model: Transformer) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


KINDS: list[dict[str, Any]] = [
    {}, {"positions": "learned"}, {"sharing": "none"}, {"sharing": "output", "projection_biases": False},
]  # fmt: skip


@pytest.mark.parametrize("changes", KINDS)
@pytest.mark.parametrize(("spare", "shards"), [(0, 1), (40, 1), (8, 4)])
def test_losses_and_gradients_are_those_of_padded_batches(
    corpus: Corpus, changes: dict[str, Any], spare: int, shards: int
) -> None:
    model = model_of(**changes)
    batch = make_batch(corpus, range(len(corpus)))
    states = model(batch.src, batch.tgt_in).flatten(0, 1).index_select(0, batch.positions)
    expected = smoothed_cross_entropy(states, model.output_table, batch.labels, 0.1)
    smoothed, likelihood = torch.zeros(2, dtype=torch.float64)
    for part in packed(corpus, spare, shards):
        found = forward(model, part, PLAIN)
        one = smoothed_cross_entropy(found, model.output_table, part.labels, 0.1, padded_block_loss)
        smoothed, likelihood = smoothed + one[0], likelihood + one[1]
    # The loss computes in float32.
    torch.testing.assert_close(torch.stack((smoothed, likelihood)), torch.stack(expected), rtol=1e-6, atol=0)
    for one, other in zip(gradients(smoothed, model), gradients(expected[0], model), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_states_of_every_position(corpus: Corpus) -> None:
    """In float64, to rounding; sentence by sentence."""
    model, (batch,) = model_of(), packed(corpus, spare=12)
    found = to_rows(forward(model, batch, PLAIN), batch.tgt).flatten(0, 1)
    labels = batch.labels[batch.tgt.token_of_place]
    seen = []
    for row in range(batch.shape.rows):
        places = slice(row * batch.shape.row_length, (row + 1) * batch.shape.row_length)
        numbers = batch.tgt.sentences[row]
        for number in range(1, int(numbers.max()) + 1):
            own, target = found[places][numbers == number], labels[places][numbers == number].tolist()
            (pair,) = [i for i in range(len(corpus)) if corpus.pair(i)[1].tolist() == target and i not in seen]
            alone = make_batch(corpus, [pair])
            torch.testing.assert_close(own, model(alone.src, alone.tgt_in)[0], rtol=1e-10, atol=1e-10)
            seen.append(pair)
    assert sorted(seen) == list(range(len(corpus)))


def test_padding_has_no_gradient_at_all(corpus: Corpus) -> None:
    """Not a small one: it would be added to the row of PAD, and to the weights."""
    model, (batch,) = model_of(), packed(corpus, spare=16)
    watched: list[Tensor] = []

    def watch(module: Any, given: Any, result: Tensor) -> None:
        result.retain_grad()
        watched.append(result)

    for layer in (*model.encoder, *model.decoder):
        for module in layer.add_norms:
            module.register_forward_hook(watch)
    states = forward(model, batch, PLAIN)
    smoothed_cross_entropy(states, model.output_table, batch.labels, 0.1, padded_block_loss)[0].backward()
    real = {len(side.ids): len(side.ids) - 16 * factor - 1 for side, factor in ((batch.src, 1), (batch.tgt, 2))}
    assert len(watched) == 2 * 2 + 2 * 3
    for result in watched:
        assert result.grad is not None
        assert result.grad[: real[len(result)]].any()
        assert not result.grad[real[len(result)] :].any()


def test_a_batch_of_padding_alone_is_finite(corpus: Corpus) -> None:
    model, (batch,) = model_of(), packed(corpus)
    arrangement = arrange(corpus.src_lengths[:1], corpus.tgt_lengths[:1], 2)
    (flat,) = pack(corpus, np.arange(1), arrangement, batch.shape, range(1, 2), 1)
    empty = PackedBatch(batch.shape, True, flat)
    smoothed, likelihood = smoothed_cross_entropy(
        forward(model, empty, PLAIN), model.output_table, empty.labels, 0.1, padded_block_loss
    )
    assert torch.stack((smoothed, likelihood)).tolist() == [0, 0]
    assert not any(gradient.any() for gradient in gradients(smoothed, model))


def test_a_row_that_is_full_on_one_side(tmp_path: Path, write_arrow: WriteArrow) -> None:
    """Free places of its targets see no source at all."""
    write_arrow(tmp_path / "train.00099.arrow", [([5] * 63 + [EOS], [6, 7, EOS])])
    model, full = model_of(), Corpus(train_files(tmp_path))
    (batch,) = packed(full)
    assert (batch.src.sentences[0] == 1).all()
    assert not batch.tgt.sentences[0, 3:].any()
    alone = make_batch(full, [0])
    states = model(alone.src, alone.tgt_in).flatten(0, 1)
    expected = smoothed_cross_entropy(states, model.output_table, alone.labels, 0.1)[0]
    found = smoothed_cross_entropy(
        forward(model, batch, PLAIN), model.output_table, batch.labels, 0.1, padded_block_loss
    )
    torch.testing.assert_close(found[0], expected, rtol=1e-6, atol=0)
    for one, other in zip(gradients(found[0], model), gradients(expected, model), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_every_module_is_called_as_often_as_on_padded_batches(corpus: Corpus) -> None:
    """So that dropout acts wherever it does there."""
    model, (batch,) = model_of(P_drop=0.1, attention_dropout=0.1, relu_dropout=0.1), packed(corpus)
    calls = Counter[str]()
    for name, module in model.named_modules():
        if not list(module.children()):
            module.register_forward_hook(lambda *_, name=name: calls.update([name]))
    forward(model, batch, PLAIN)
    found = calls.copy()
    calls.clear()
    padded = make_batch(corpus, range(len(corpus)))
    model(padded.src, padded.tgt_in)
    assert found == calls
    assert sum("dropout" in name for name in calls) == 1 + 2 * 4 + 2 * 6


def test_rows_and_streams_are_each_others_inverse(corpus: Corpus) -> None:
    (batch,) = packed(corpus, spare=20)
    for side in (batch.src, batch.tgt):
        x = torch.randn(len(side.ids), 3, dtype=torch.float64, requires_grad=True)
        real = int((side.sentences > 0).sum())
        back = to_stream(to_rows(x, side), side)
        torch.testing.assert_close(back[:real], x[:real], rtol=0, atol=0)
        weight = torch.randn(real, 3, dtype=torch.float64)
        (gradient,) = torch.autograd.grad((back[:real] * weight).sum(), x)
        torch.testing.assert_close(gradient[:real], weight, rtol=0, atol=0)
        assert not gradient[real:].any()


def test_rows_of_padding_count_nothing_in_the_loss() -> None:
    torch.manual_seed(3)
    logits, label = torch.randn(6, VOCABULARY), torch.tensor([5, PAD, 7, 9, PAD, PAD])[:, None]
    real = (label != PAD).flatten()
    expected = block_loss(logits[real], label[real], 0.1, True)
    found = padded_block_loss(logits.clone(), label, 0.1, True)
    torch.testing.assert_close(found[:2], expected[:2])
    assert found[2] is not None
    torch.testing.assert_close(found[2][real], expected[2])
    assert not found[2][~real].any()
    assert padded_block_loss(logits, label, 0.1, False)[2] is None
