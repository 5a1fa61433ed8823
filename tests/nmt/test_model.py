"""The model against torch's own Transformer, the positional encoding's formulas, masks and tied embeddings."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from model_folders import model_settings
from pydantic import ValidationError
from refusals import check_refusal
from torch import Tensor, nn
from torch.nn import functional as F

from nmt import packing
from nmt.ids import PAD
from nmt.model import Dropout, Transformer, positional_encoding, subsequent_mask
from nmt.model_settings import ModelSettings
from nmt.packing import pack, pack_tensor

SMALL = model_settings(h=4, d_k=4, d_v=4)
VOCABULARY = 24


def model_of(seed: int = 0, **changes: object) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(ModelSettings.model_validate({**SMALL.model_dump(), **changes}), VOCABULARY).double().eval()


def ids(*rows: list[int]) -> Tensor:
    longest = max(len(row) for row in rows)
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


def layers_of(model: Transformer, twin: nn.Transformer) -> Iterator[tuple[Any, Any]]:
    return zip([*model.encoder, *model.decoder], [*twin.encoder.layers, *twin.decoder.layers], strict=True)


def torch_twin(model: Transformer) -> nn.Transformer:
    """torch.nn.Transformer with this model's weights; it knows only d_k = d_v = d_model / h."""
    s, how = model.settings, {"dropout": 0.0, "batch_first": True, "layer_norm_eps": 1e-6, "dtype": torch.float64}
    twin = nn.Transformer(s.d_model, s.h, s.N, s.N, s.d_ff, **how)
    twin.encoder.norm = twin.decoder.norm = None

    def copy_attention(ours: nn.Module, theirs: nn.MultiheadAttention) -> None:
        projections = (ours.W_Q, ours.W_K, ours.W_V)
        theirs.in_proj_weight.data = torch.cat([p.weight.data for p in projections])
        theirs.in_proj_bias.data = torch.cat([p.bias.data for p in projections])
        theirs.out_proj.load_state_dict(ours.W_O.state_dict())

    for ours, theirs in layers_of(model, twin):
        copy_attention(ours.self_attention, theirs.self_attn)
        norms = [theirs.norm1, theirs.norm2]
        if hasattr(ours, "cross_attention"):
            copy_attention(ours.cross_attention, theirs.multihead_attn)
            norms.append(theirs.norm3)
        theirs.linear1.load_state_dict(ours.feed_forward.W_1.state_dict())
        theirs.linear2.load_state_dict(ours.feed_forward.W_2.state_dict())
        for add_norm, norm in zip(ours.add_norms, norms, strict=True):
            norm.load_state_dict(add_norm.norm.state_dict())
    return twin.eval()


class Scale(nn.Module):
    """In the place of a dropout: what it multiplies by shows where it stands."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def scale_dropouts(model: Transformer, twin: nn.Transformer) -> None:
    """Put a factor of its own in the place of each dropout on a sub-layer's output or after the ReLU, in both."""
    factor = 0.5
    for ours, theirs in layers_of(model, twin):
        for number, add_norm in enumerate(ours.add_norms, start=1):
            factor += 0.1
            add_norm.dropout = Scale(factor)
            setattr(theirs, f"dropout{number}", Scale(factor))
        ours.feed_forward.dropout, theirs.dropout = Scale(factor + 0.05), Scale(factor + 0.05)


@pytest.mark.parametrize("in_training", [False, True])
def test_parity_with_torch_transformer(in_training: bool) -> None:
    """In training, dropouts are replaced by factors: torch's layers have theirs in the same places."""
    model = model_of()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    src, tgt = ids([5, 6, 7, 2], [8, 2]), ids([1, 9, 10], [1, 11])
    twin = torch_twin(model)
    if in_training:
        scale_dropouts(model, twin)
        # The embeddings' dropout stays off: the twin has none.
        model.train().embedding.eval()
        twin.train()
    (source,), (target,) = (packed.pad(model.embedding(packed), 1) for packed in (pack_tensor(src), pack_tensor(tgt)))
    masks = {"src_key_padding_mask": src == PAD, "memory_key_padding_mask": src == PAD}
    expected = twin(source[:, 0], target[:, 0], tgt_mask=subsequent_mask(3, torch.device("cpu")) < 0, **masks)
    states = model(src, tgt)
    real = tgt != PAD
    assert torch.allclose(states[real], expected[real], atol=1e-12)


@pytest.mark.parametrize("rounded", [False, True])
def test_blocks_of_any_lengths_give_what_a_sentence_gives_alone(rounded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The padding of a block, and rows added to all, reach neither outputs nor gradients."""
    monkeypatch.setattr(packing, "STEPS", 1)
    model = model_of()
    sources, targets = [[5, 6, 7, 2], [8, 2], [9, 2]], [[1, 9], [1, 11, 12, 13], [1]]
    alone = torch.cat([model(ids(src), ids(tgt))[0] for src, tgt in zip(sources, targets, strict=True)])
    blocks = [[ids(*side[:2]).numpy(), ids(side[2]).numpy()] for side in (sources, targets)]
    src, tgt_in = (pack(side, 4, rounded=rounded) for side in blocks)
    together = model.states(src, tgt_in)[: len(alone)]
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)
    weights = torch.randn_like(alone)
    both = [torch.autograd.grad((states * weights).sum(), list(model.parameters())) for states in (together, alone)]
    torch.testing.assert_close(*both, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "changes",
    [
        {"h": 1, "d_k": 16, "d_v": 16}, {"h": 8, "d_k": 2, "d_v": 2}, {"d_k": 2}, {"h": 3, "d_k": 5, "d_v": 7},
        {"projection_biases": False, "d_k": 3},
    ],
)  # fmt: skip
def test_attention_of_every_shape_equals_heads_one_by_one(changes: dict[str, object]) -> None:
    """Section 3.2.2 written head by head with loops, for shapes that torch's module does not know."""
    module = model_of(**changes).encoder[0].self_attention
    d_k, d_v = module.W_K.weight.shape[0] // module.h, module.W_V.weight.shape[0] // module.h
    x, memory = torch.randn(3, 16, dtype=torch.float64), torch.randn(5, 16, dtype=torch.float64)
    heads = []
    for i in range(module.h):
        k_rows, v_rows = slice(i * d_k, (i + 1) * d_k), slice(i * d_v, (i + 1) * d_v)

        def project(y: Tensor, linear: nn.Linear, rows: slice) -> Tensor:
            return F.linear(y, linear.weight[rows], None if linear.bias is None else linear.bias[rows])

        q, k = project(x, module.W_Q, k_rows), project(memory, module.W_K, k_rows)
        v = project(memory, module.W_V, v_rows)
        scores = torch.stack([torch.stack([q[a] @ k[b] for b in range(5)]) for a in range(3)]) / math.sqrt(d_k)
        heads.append(0.5 * scores.softmax(1) @ v)
    module.dropout = Scale(0.5)  # Between the softmax and the product with V.
    expected = module.W_O(torch.cat(heads, dim=1))
    queries, keys = (pack_tensor(torch.full((1, length), 5), module.h) for length in (3, 5))
    assert torch.allclose(module(x, memory, queries, keys, keys.masks), expected, atol=1e-12)


@pytest.mark.parametrize("biases", [True, False])
def test_one_product_for_all_projections_of_an_input_is_the_same(biases: bool) -> None:
    """As on GPUs."""

    class Elsewhere(Tensor):
        is_cpu = False

    module = model_of(projection_biases=biases, d_v=5).encoder[0].self_attention
    x, memory = torch.randn(6, 16, dtype=torch.float64), torch.randn(10, 16, dtype=torch.float64)
    queries, keys = (pack_tensor(torch.full((2, length), 5), module.h) for length in (3, 5))
    contexts = [(x, queries), (memory, keys)]
    expected = [module(x, context, queries, of, of.masks) for context, of in contexts]
    elsewhere = x.as_subclass(Elsewhere)
    for output, (context, of) in zip(expected, [(elsewhere, queries), (memory, keys)], strict=True):
        again = module(elsewhere, context, queries, of, of.masks).as_subclass(Tensor)
        torch.testing.assert_close(again, output, rtol=0, atol=1e-12)


def test_positional_encoding_follows_the_formulas() -> None:
    pe = positional_encoding(50, 8)
    for position, i in [(0, 0), (3, 1), (49, 3)]:
        angle = position / 10000 ** (2 * i / 8)
        assert pe[position, 2 * i : 2 * i + 2].tolist() == pytest.approx([math.sin(angle), math.cos(angle)], abs=1e-6)
    halves = positional_encoding(50, 8, "halves")
    assert torch.equal(halves[:, :4], pe[:, 0::2])
    assert torch.equal(halves[:, 4:], pe[:, 1::2])


@pytest.mark.parametrize(("length", "layout"), [(512, "halves"), (513, "halves"), (513, "interleaved")])
def test_embeddings_are_scaled_and_placed_before_the_dropout(length: int, layout: str) -> None:
    """Also at the edge of the prepared table of positions."""
    embedding = model_of(position_layout=layout).embedding
    embedding.dropout = Scale(0.5)
    expected = positional_encoding(length, 16, layout)[-1].double() + 4 * embedding.table[5]
    assert torch.allclose(embedding(pack_tensor(torch.full((1, length), 5)))[-1], 0.5 * expected, atol=1e-6)
    assert embedding.pe.shape == ((512 if length <= 512 else 2 * length), 16)
    assert embedding.pe.dtype == torch.float64
    assert list(embedding.state_dict()) == ["table"]


def test_learned_positions_are_added_row_by_row() -> None:
    embedding = model_of(positions="learned").embedding
    assert "learned" in embedding.state_dict()
    embedded = embedding(pack_tensor(torch.full((2, 64), 5)))
    torch.testing.assert_close(embedded[64:], embedding.learned + 4 * embedding.table[5])
    check_refusal(r"65 subwords, but model\.max_positions is 64", embedding, pack_tensor(torch.full((1, 65), 5)))


@pytest.mark.parametrize(
    ("sharing", "rows"),
    [
        ("all", [{25, 2, 1, 9, 4}]),  # Source, decoder's input and output product reach one gradient.
        ("output", [{25, 2}, {1, 9, 4}]),
        ("none", [{25, 2}, {1, 9}, {4}]),
    ],
)
def test_tables_have_their_own_rows_and_gradients(sharing: str, rows: list[set[int]]) -> None:
    torch.manual_seed(0)
    check_refusal(r"has 30 rows and the target 11: give model\.sharing output", Transformer, SMALL, 30, 11)
    settings = ModelSettings.model_validate({**SMALL.model_dump(), "sharing": sharing})
    model = Transformer(settings, 30, None if sharing == "all" else 11).double().eval()
    tables = list(dict.fromkeys([model.embedding.table, model.target_embedding.table, model.output_table]))
    assert [table.shape[0] for table in tables] == [30, 11, 11][: len(rows)]
    assert {*tables} == {table for table in model.parameters() if table.shape[0] in {30, 11}}
    model.logits(model(ids([25, 2]), ids([1, 9])))[..., 4].sum().backward()
    reached = [{int(row) for row in table.grad.abs().sum(1).nonzero()} for table in tables if table.grad is not None]
    assert reached == rows


def test_dropout_keeps_the_mean_and_the_share() -> None:
    dropout = model_of(P_drop=0.3).encoder[0].add_norms[0].dropout.train()
    x = torch.ones(1_000_003)
    torch.manual_seed(1)
    y = dropout(x)
    assert (y == 0).float().mean().item() == pytest.approx(0.3, abs=2e-3)
    assert y.mean().item() == pytest.approx(1.0, abs=3e-3)
    # Each of the four lanes of a 64-bit draw has the same share.
    for lane in range(4):
        assert (y[lane::4] == 0).float().mean().item() == pytest.approx(0.3, abs=4e-3)
    assert torch.equal(dropout.eval()(x), x)
    # No element repeats its neighbour's draw, in the same row or the next; the kept ones are 1 / (1 - P).
    dropout = Dropout(0.25).train()
    torch.manual_seed(1)
    y = dropout(torch.ones(512, 513, dtype=torch.float64))
    assert set(y.unique().tolist()) == {0.0, 1 / 0.75}
    dropped = y == 0
    for rows, columns in ((0, 1), (1, 0), (0, 4)):
        one, other = dropped[rows:, columns:], dropped[: 512 - rows, : 513 - columns]
        assert (one & other).double().mean().item() == pytest.approx(0.25**2, abs=3e-3)
    assert not torch.equal(dropout(torch.ones(9, 9)), dropout(torch.ones(9, 9)))
    x = torch.randn(5, requires_grad=True)
    assert Dropout(0.0).train()(x) is x
    # The gradient goes through the same mask.
    torch.manual_seed(2)
    y = Dropout(0.5).train()(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient * x, y)


@pytest.mark.parametrize("name", ["P_drop", "attention_dropout", "relu_dropout"])
def test_larger_dropouts_than_a_few_draws_keep_are_refused(name: str) -> None:
    """The bits of a draw would round them to 1."""
    assert Dropout(getattr(model_settings(**{name: 0.99}), name)).train()(torch.ones(1000)).isfinite().all()
    with pytest.raises(ValidationError):
        model_settings(**{name: 0.991})


LARGE = SMALL.model_copy(update={"d_model": 64, "d_k": 16, "d_v": 16, "d_ff": 128})
SELF, CROSS, FFN = "self_attention.W_", "cross_attention.W_", "feed_forward.W_"
GLOROT = {"": 6 / 128, FFN: 6 / 192}


@pytest.mark.parametrize(
    ("kind", "squares"),
    [
        ("glorot", GLOROT),
        ("tensor2tensor", GLOROT | {SELF: 6 / 256, SELF + "O": 6 / 128, CROSS + "K": 6 / 192, CROSS + "V": 6 / 192}),
        ("fairseq", {"": 3 / 128, SELF + "O": 6 / 128, CROSS + "O": 6 / 128, FFN + "1": 1 / 64, FFN + "2": 1 / 128}),
    ],
)
def test_first_weights_have_the_ranges_of_each_program(kind: str, squares: dict[str, float]) -> None:
    torch.manual_seed(3)
    model = Transformer(LARGE.model_copy(update={"initialisation": kind}), 99)
    checked = 0
    for name, linear in model.named_modules():
        if isinstance(linear, nn.Linear):
            bound = math.sqrt(squares[max((key for key in squares if key in name), key=len)])
            assert bound * 0.98 < linear.weight.abs().max().item() <= bound, name
            assert linear.weight.mean().item() == pytest.approx(0.0, abs=0.1 * bound)
            drawn = kind == "fairseq" and not name.endswith("W_O")
            largest = linear.in_features**-0.5 if drawn else 0.0
            assert largest * 0.8 <= linear.bias.abs().max().item() <= largest, name
            checked += 1
    assert checked == 2 * (6 + 10)


def test_first_embeddings_and_norms() -> None:
    torch.manual_seed(3)
    model = Transformer(LARGE, 5000)
    assert model.embedding.table.std().item() == pytest.approx(64**-0.5, rel=0.02)
    for name, parameter in model.named_parameters():
        if "norm." in name:
            assert (parameter == float(name.endswith("weight"))).all(), name
    learned = Transformer(SMALL.model_copy(update={"positions": "learned", "max_positions": 2000}), 5).embedding.learned
    assert learned.std().item() == pytest.approx(16**-0.5, rel=0.02)
    assert learned.mean().item() == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize(("tokens", "rows"), [(1, 1), (16, 16), (33, 34), (1000, 1024), (1025, 1088), (3100, 3136)])
def test_rows_of_a_batch_are_rounded_up_by_at_most_a_sixteenth(tokens: int, rows: int) -> None:
    packed = pack([np.full((1, tokens), 7)], 2, rounded=True)
    assert len(packed.ids) == rows
    assert (packed.ids[tokens:] == PAD).all()
    (block,) = packed.pad(torch.ones(rows, 6), 2)
    assert packed.unpad([block]).sum().item() == 6 * tokens, "the rows that were added are 0"
    with pytest.raises(ValueError, match="packed for 2 heads"):
        packed.pad(torch.zeros(rows, 2), 1)
