"""The model against torch's own Transformer, the positional encoding's formulas, masks and tied embeddings."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.config import PAD, InputError, ModelSettings
from nmt.model import MultiHeadAttention, Transformer, padding_mask, positional_encoding, subsequent_mask

SMALL = ModelSettings(
    N=2, d_model=16, d_ff=32, h=4, d_k=4, d_v=4, P_drop=0.1, attention_dropout=0.0, relu_dropout=0.0,
    positions="sinusoidal", position_layout="interleaved", max_positions=64, projection_biases=True,
    initialisation="glorot",
)  # fmt: skip
VOCABULARY = 24


def model_of(seed: int = 0, **changes: object) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(ModelSettings.model_validate({**SMALL.model_dump(), **changes}), VOCABULARY).double().eval()


def ids(*rows: list[int]) -> Tensor:
    longest = max(len(row) for row in rows)
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


def torch_twin(model: Transformer) -> nn.Transformer:
    """torch.nn.Transformer with this model's weights; it knows only d_k = d_v = d_model / h."""
    s = model.settings
    twin = nn.Transformer(
        s.d_model, s.h, s.N, s.N, s.d_ff, dropout=0.0, batch_first=True, layer_norm_eps=1e-6, dtype=torch.float64
    )
    twin.encoder.norm = twin.decoder.norm = None

    def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
        projections = (ours.W_Q, ours.W_K, ours.W_V)
        theirs.in_proj_weight.data = torch.cat([p.weight.data for p in projections])
        theirs.in_proj_bias.data = torch.cat([p.bias.data for p in projections])
        theirs.out_proj.load_state_dict(ours.W_O.state_dict())

    for ours, theirs in zip(
        [*model.encoder, *model.decoder], [*twin.encoder.layers, *twin.decoder.layers], strict=True
    ):
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


def test_parity_with_torch_transformer() -> None:
    model = model_of()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    src, tgt = ids([5, 6, 7, 2], [8, 2]), ids([1, 9, 10], [1, 11])
    twin = torch_twin(model)
    expected = twin(
        model.embedding(src), model.embedding(tgt),
        tgt_mask=~subsequent_mask(3, torch.device("cpu")), src_key_padding_mask=src == PAD,
        memory_key_padding_mask=src == PAD,
    )  # fmt: skip
    found = model(src, tgt)
    real = tgt != PAD
    assert torch.allclose(found[real], expected[real], atol=1e-12)


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
    assert isinstance(module, MultiHeadAttention)
    d_k, d_v = module.W_K.weight.shape[0] // module.h, module.W_V.weight.shape[0] // module.h
    x, memory = torch.randn(1, 3, 16, dtype=torch.float64), torch.randn(1, 5, 16, dtype=torch.float64)
    heads = []
    for i in range(module.h):
        k_rows, v_rows = slice(i * d_k, (i + 1) * d_k), slice(i * d_v, (i + 1) * d_v)

        def project(y: Tensor, linear: nn.Linear, rows: slice) -> Tensor:
            return F.linear(y, linear.weight[rows], None if linear.bias is None else linear.bias[rows])

        q, k, v = (
            project(x[0], module.W_Q, k_rows),
            project(memory[0], module.W_K, k_rows),
            project(memory[0], module.W_V, v_rows),
        )
        weights = torch.stack(
            [torch.softmax(torch.stack([q[a] @ k[b] / math.sqrt(d_k) for b in range(5)]), 0) for a in range(3)]
        )
        heads.append(weights @ v)
    expected = module.W_O(torch.cat(heads, dim=1))
    assert torch.allclose(module(x, memory, None)[0], expected, atol=1e-12)


def test_positional_encoding_follows_the_formulas() -> None:
    pe = positional_encoding(50, 8)
    for position, i in [(0, 0), (3, 1), (49, 3)]:
        angle = position / 10000 ** (2 * i / 8)
        assert pe[position, 2 * i] == pytest.approx(math.sin(angle), abs=1e-6)
        assert pe[position, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-6)
    halves = positional_encoding(50, 8, "halves")
    assert torch.equal(halves[:, :4], pe[:, 0::2])
    assert torch.equal(halves[:, 4:], pe[:, 1::2])


def test_a_shift_of_positions_is_a_linear_map() -> None:
    """Section 3.5: PE(pos + k) is one rotation of PE(pos), the same for all positions."""
    pe = positional_encoding(60, 8).double()
    k = 7
    for i in range(4):
        angle = k / 10000 ** (2 * i / 8)
        rotation = torch.tensor(
            [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]], dtype=torch.float64
        )
        pair = slice(2 * i, 2 * i + 2)
        assert torch.allclose(pe[k:, pair], pe[:-k, pair] @ rotation.T, atol=1e-5)


def test_positions_grow_beyond_the_prepared_table() -> None:
    model = model_of()
    assert model.embedding(torch.full((1, 700), 5)).shape == (1, 700, 16)
    expected = positional_encoding(700, 16)[699].double() + 4 * model.embedding.table[5]
    assert torch.allclose(model.embedding(torch.full((1, 700), 5))[0, 699], expected, atol=1e-6)


def test_learned_positions_end_with_one_sentence() -> None:
    model = model_of(positions="learned")
    assert "embedding.learned" in model.state_dict()
    with pytest.raises(InputError, match=r"65 subwords, but model\.max_positions is 64"):
        model.embedding(torch.full((1, 65), 5))


@given(st.integers(0, 5), st.integers(4, VOCABULARY - 1))
def test_no_position_sees_its_future(position: int, token: int) -> None:
    model = model_of()
    src = ids([5, 6, 7, 2])
    tgt = ids([1, 8, 9, 10, 11, 12, 13])
    changed = tgt.clone()
    changed[0, position + 1] = token
    before, after = model(src, tgt), model(src, changed)
    assert torch.equal(before[:, : position + 1], after[:, : position + 1])
    if not torch.equal(changed, tgt):
        assert not torch.equal(before[:, position + 1], after[:, position + 1])


@given(st.integers(1, 6))
def test_padding_is_never_attended_to(padding: int) -> None:
    model = model_of()
    src, tgt = ids([5, 6, 7, 2]), ids([1, 8, 9])
    padded = F.pad(src, (0, padding), value=PAD)
    assert torch.allclose(model(padded, F.pad(tgt, (0, padding), value=PAD))[:, :3], model(src, tgt), atol=1e-12)


def test_the_embedding_is_one_tensor_with_one_gradient() -> None:
    model = model_of()
    table = model.embedding.table
    assert sum(p.shape == table.shape for p in model.parameters()) == 1
    src, tgt = ids([5, 2]), ids([1, 9])
    model.logits(model(src, tgt))[..., 20].sum().backward()
    gradient = table.grad
    assert gradient is not None
    # Source, decoder's input and output product all reach the same gradient; row 15 is in none of them.
    for row in (5, 9, 20):
        assert gradient[row].abs().sum() > 0
    assert gradient[15].abs().sum() == 0


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


def test_initialisation_has_the_stated_ranges() -> None:
    torch.manual_seed(3)
    model = Transformer(SMALL.model_copy(update={"d_model": 64, "d_k": 16, "d_v": 16, "d_ff": 128}), 5000)
    assert model.embedding.table.std().item() == pytest.approx(64**-0.5, rel=0.02)
    bound = math.sqrt(6 / 128)
    weight = model.encoder[0].self_attention.W_Q.weight
    assert bound * 0.98 < weight.abs().max().item() <= bound
    fused = Transformer(
        SMALL.model_copy(update={"d_model": 64, "d_k": 16, "d_v": 16, "initialisation": "glorot_fused"}), 99
    )
    smaller = math.sqrt(6 / (64 + 3 * 64))
    assert smaller * 0.98 < fused.encoder[0].self_attention.W_Q.weight.abs().max().item() <= smaller
    assert fused.decoder[0].cross_attention.W_Q.weight.abs().max().item() > smaller


def test_padding_mask_is_true_at_tokens() -> None:
    assert padding_mask(ids([5, 2], [7])).tolist() == [[[[True, True]]], [[[True, False]]]]
