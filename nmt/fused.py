"""Attention, and LayerNorm(x + Dropout(y)), on CPUs: each one step for autograd, with the gradients written out.

On GPUs, attention by torch's FlashAttention.

`nmt.model` has both as the paper writes them. Between the small products of short sentences, autograd's own work takes
longer than the products.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function

from nmt.common.shapes import Float, Int
from nmt.packing import MOST, Packed

DROPOUT_STEPS = 65_536
"""Dropout on a CPU draws 16-bit integers, which rounds probabilities to multiples of 1 / DROPOUT_STEPS."""
VECTOR = 16  # Float32 numbers of a vector register with AVX-512

# From torch 2.15 on, varlen_attn prefers cuDNN on an H100 and newer GPUs. That builds a graph for each new shape, which
# every update has, and its gradients have no fixed order.
torch.backends.cuda.enable_cudnn_sdp(False)


def random_integers(like: Float[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """Draw 16-bit integers, four from each 64-bit draw, for speed."""
    # The full range: the default would leave the sign bit of every fourth 16-bit integer 0.
    drawn = torch.empty((like.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    return drawn.view(torch.int16)[: like.numel()].view(like.shape)


class _AddNorm(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, sublayer: Tensor, weight: Tensor, bias: Tensor, epsilon: float, P_drop: float
    ) -> Tensor:
        steps, drawn, ctx.dtype = round(P_drop * DROPOUT_STEPS), None, sublayer.dtype
        ctx.last_dropped, ctx.scale = steps - DROPOUT_STEPS // 2 - 1, DROPOUT_STEPS / (DROPOUT_STEPS - steps)
        if steps:
            drawn = random_integers(sublayer)
            sublayer = _dropped(sublayer.float(), drawn, ctx.last_dropped)
        total = torch.add(x, sublayer, alpha=ctx.scale)
        y, mean, rstd = torch.native_layer_norm(total, [len(weight)], weight, bias, epsilon)
        ctx.save_for_backward(total, mean, rstd, weight, bias, drawn)
        return y

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None, None]:
        total, mean, rstd, weight, bias, drawn = ctx.saved_tensors
        d_total, d_weight, d_bias = torch.ops.aten.native_layer_norm_backward(
            upstream[0].contiguous(), total, [len(weight)], mean, rstd, weight, bias, [True, True, True]
        )
        d_sublayer = d_total
        if drawn is not None:
            d_sublayer = _dropped(d_total, drawn, ctx.last_dropped).mul_(ctx.scale)
        return d_total, d_sublayer.to(ctx.dtype), d_weight, d_bias, None, None


def _dropped(x: Tensor, drawn: Tensor, last: int) -> Tensor:
    """Return `x`, and 0 where `drawn` is at most `last`; torch has no vector code for masks of booleans."""
    kept: Tensor = torch.ops.aten.threshold_backward(x, drawn.float(), last)
    return kept


def add_norm(
    x: Float[Tensor, "*positions d_model"],
    sublayer: Float[Tensor, "*positions d_model"],
    norm: nn.LayerNorm,
    P_drop: float,
) -> Float[Tensor, "*positions d_model"]:
    """Return LayerNorm(x + Dropout(sublayer)), in float32."""
    y: Tensor = _AddNorm.apply(x, sublayer, norm.weight, norm.bias, norm.eps, P_drop)
    return y


class _Attention(Function):
    """softmax(QK^T / sqrt(d_k)) V, Eq. 1; computed in float32, because products as small are slow in bfloat16."""

    @staticmethod
    def forward(
        ctx: Any, Q: Tensor, K: Tensor, V: Tensor, queries: Packed, keys: Packed, masks: Sequence[Tensor], heads: int
    ) -> Tensor:
        ctx.queries, ctx.keys, ctx.dtype = queries, keys, Q.dtype
        q, k, v = (side.spread(x, heads).float() for side, x in ((queries, Q), (keys, K), (keys, V)))
        ctx.scale = q.shape[1] ** -0.5
        q.mul_(ctx.scale)
        o, all_weights = _empty(q, v.shape[1]), []
        parts = zip(queries.blocks(q), keys.blocks(k), keys.blocks(v), queries.blocks(o), masks, strict=True)
        for q_block, k_block, v_block, o_block, mask in parts:  # [sentences * h, length, d]
            scores = torch.bmm(q_block, k_block.mT)
            scores.unflatten(0, (-1, queries.heads)).add_(mask)
            weights = softmax_(scores)
            torch.bmm(weights, v_block, out=o_block)
            all_weights.append(weights)
        ctx.save_for_backward(q, k, v, *all_weights)
        return queries.gather(o).to(ctx.dtype)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *all_weights = ctx.saved_tensors
        queries, keys = ctx.queries, ctx.keys
        dq, dk, dv = (_empty(x, x.shape[1]) for x in (q, k, v))
        of_queries = (queries.blocks(x) for x in (q, queries.scatter(upstream[0].float()), dq))
        of_keys = (keys.blocks(x) for x in (k, v, dk, dv))
        parts = zip(all_weights, *of_queries, *of_keys, strict=True)
        for weights, q_block, do_block, dq_block, k_block, v_block, dk_block, dv_block in parts:
            torch.bmm(weights.mT, do_block, out=dv_block)
            d_weights = torch.bmm(do_block, v_block.mT)
            d_scores = _softmax_backward_(d_weights, weights)
            torch.bmm(d_scores, k_block, out=dq_block)
            torch.bmm(d_scores.mT, q_block, out=dk_block)
        gradients = queries.gather(dq.mul_(ctx.scale)), keys.gather(dk), keys.gather(dv)
        return *(gradient.to(ctx.dtype) for gradient in gradients), None, None, None, None


def softmax_(scores: Float[Tensor, "*rows keys"]) -> Float[Tensor, "*rows keys"]:
    """Return the softmax over the last dimension; may overwrite `scores`. torch has no vector code for few keys."""
    if scores.shape[-1] >= VECTOR:
        return torch.softmax(scores, -1)
    scores.sub_(scores.amax(-1, keepdim=True)).exp_()
    return scores.div_(scores.sum(-1, keepdim=True))


def _softmax_backward_(d_weights: Tensor, weights: Tensor) -> Tensor:
    if weights.shape[-1] >= VECTOR:
        d_scores: Tensor = torch.ops.aten._softmax_backward_data(d_weights, weights, -1, torch.float32)
        return d_scores
    products = d_weights.mul_(weights)
    return products.addcmul_(weights, products.sum(-1, keepdim=True), value=-1)


def _empty(like: Float[Tensor, "padded_heads _"], d: int) -> Float[Tensor, "padded_heads d"]:
    """Room for the blocks of a side; 0 in its last row, which stands for the rows that `pack` added."""
    empty = like.new_empty(len(like), d)
    empty[-1] = 0
    return empty


def attend(
    Q: Float[Tensor, "query heads_d_k"],
    K: Float[Tensor, "key heads_d_k"],
    V: Float[Tensor, "key heads_d_v"],
    queries: Packed,
    keys: Packed,
    masks: Sequence[Float[Tensor, "..."]],
    heads: int,
) -> Float[Tensor, "query heads_d_v"]:
    """Return the heads' outputs side by side; each sentence attends to the sentence of the same number."""
    with torch.autocast("cpu", enabled=False):
        outputs: Tensor = _Attention.apply(Q, K, V, queries, keys, masks, heads)
    return outputs


def flash_attend(
    Q: Float[Tensor, "query heads_d"],
    K: Float[Tensor, "key heads_d"],
    V: Float[Tensor, "key heads_d"],
    queries: Packed,
    keys: Packed,
    heads: int,
    *,
    causal: bool,
) -> Float[Tensor, "query heads_d"]:
    """Do what `attend` does, on a GPU in bfloat16 by torch's FlashAttention, which needs no padding.

    It fills a small part of its tiles with short sentences, but starts one kernel where plain products start ten for
    each block, and starting them is what takes the time.
    """
    from torch.nn.attention.varlen import varlen_attn  # imports torch's compiler, which takes a second or two

    # The rows that `pack` added count as a sentence, too.
    longest = (max(MOST, *(mask.shape[-1] for mask in side.masks)) for side in (queries, keys))
    Q, K, V = (x.unflatten(1, (heads, -1)) for x in (Q, K, V))
    window = (-1, 0) if causal else (-1, -1)
    output = varlen_attn(Q, K, V, queries.starts, keys.starts, *longest, window_size=window)
    return cast("Tensor", output).flatten(1)
