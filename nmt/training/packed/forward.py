"""Figure 1 on packed batches: the layers of `nmt.model`, where only attention sees rows of sentences.

Computes at each position what the model computes for padded sentences, up to rounding, by operations whose shapes
depend on the batch's shape alone, so that a CUDA graph can repeat them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nmt.common.shapes import Float
from nmt.model import DecoderLayer, Embedding, EncoderLayer, MultiHeadAttention, Transformer, attention, subsequent_mask
from nmt.training.packed.batches import PackedBatch, Side

FORBIDDEN = -1e9
"""Added to the scores of positions that a query may not attend to. Not -inf: a row that is all padding would have no
weights at all, and its gradient would be undefined."""

Mask = Float[Tensor, "rows 1 query key"]


class Layers:
    """One encoder and one decoder layer on streams; compiled, all layers of a stack share their code."""

    def __init__(self, *, compiled: bool) -> None:
        def maybe(function: Callable[..., Any]) -> Callable[..., Any]:
            # Dynamic sizes: one compilation for all shapes.
            return torch.compile(function, dynamic=True) if compiled else function

        self.encoder, self.decoder = maybe(encoder_layer), maybe(decoder_layer)


def forward(model: Transformer, batch: PackedBatch, layers: Layers) -> Float[Tensor, "tokens d_model"]:
    """Return the decoder's output at every position of the targets' stream."""
    src, tgt = batch.src.copied(), batch.tgt.copied()
    src_mask = mask_between(src, src)
    memory = embed(model.embedding, src)
    for layer in model.encoder:
        memory = layers.encoder(layer, memory, src, src_mask)
    # A sentence lies in a row in its order, so a position may attend to its left.
    later = ~subsequent_mask(batch.shape.row_length, src_mask.device)
    tgt_mask = mask_between(tgt, tgt).masked_fill_(later, FORBIDDEN)
    cross_mask = mask_between(tgt, src)
    x = embed(model.target_embedding, tgt)
    for layer in model.decoder:
        x = layers.decoder(layer, x, memory, tgt, src, tgt_mask, cross_mask)
    return x


def embed(embedding: Embedding, side: Side) -> Float[Tensor, "tokens d_model"]:
    """Return the embeddings of a stream, with each sentence's own positions."""
    longest, settings = side.sentences.shape[1], embedding.settings
    if settings.positions == "learned":
        longest = min(longest, settings.max_positions)  # A row may be longer than any sentence.
    return embedding.at(side.ids, embedding.positions(longest)[side.positions])


def mask_between(queries: Side, keys: Side) -> Mask:
    """Return what is added to scores: 0 within a sentence, FORBIDDEN elsewhere."""
    same = queries.sentences[:, None, :, None] == keys.sentences[:, None, None, :]
    return torch.zeros(same.shape, device=same.device).masked_fill_(~same, FORBIDDEN)


def encoder_layer(
    layer: EncoderLayer, x: Float[Tensor, "tokens d_model"], src: Side, mask: Mask
) -> Float[Tensor, "tokens d_model"]:
    """Return what `EncoderLayer` returns."""
    x = layer.add_norms[0](x, attend(layer.self_attention, x, x, src, src, mask))
    result: Tensor = layer.add_norms[1](x, layer.feed_forward(x))
    return result


def decoder_layer(
    layer: DecoderLayer,
    x: Float[Tensor, "tokens d_model"],
    memory: Float[Tensor, "tokens_src d_model"],
    tgt: Side,
    src: Side,
    tgt_mask: Mask,
    cross_mask: Mask,
) -> Float[Tensor, "tokens d_model"]:
    """Return what `DecoderLayer` returns."""
    x = layer.add_norms[0](x, attend(layer.self_attention, x, x, tgt, tgt, tgt_mask))
    x = layer.add_norms[1](x, attend(layer.cross_attention, x, memory, tgt, src, cross_mask))
    result: Tensor = layer.add_norms[2](x, layer.feed_forward(x))
    return result


def attend(
    module: MultiHeadAttention,
    x: Float[Tensor, "tokens d_model"],
    context: Float[Tensor, "tokens_context d_model"],
    queries: Side,
    keys: Side,
    mask: Mask,
) -> Float[Tensor, "tokens d_model"]:
    """Return what `MultiHeadAttention` returns: project the streams, attend in rows, project the stream."""
    Q = module.split_heads(to_rows(module.W_Q(x), queries))
    K = module.split_heads(to_rows(module.W_K(context), keys))
    V = module.split_heads(to_rows(module.W_V(context), keys))
    heads = attention(Q, K, V, mask, module.dropout)
    result: Tensor = module.W_O(to_stream(heads.transpose(1, 2).flatten(2), queries))
    return result


def to_rows(x: Float[Tensor, "tokens width"], side: Side) -> Float[Tensor, "rows row_length width"]:
    """Copy a stream's positions to their places in rows."""
    rows: Tensor = _move(x, side.token_of_place, side.place_of_token).unflatten(0, side.sentences.shape)
    return rows


def to_stream(x: Float[Tensor, "rows row_length width"], side: Side) -> Float[Tensor, "tokens width"]:
    """Copy the places of rows to their positions in the stream."""
    return _move(x.flatten(0, 1), side.place_of_token, side.token_of_place)


class _Move(torch.autograd.Function):
    """Copy rows of a matrix to other places, and their gradients back.

    By itself torch would add up gradients that meet, atomically. Here real positions never do. The gradients of padding
    are exactly 0: no label is there, no weight of a real query, and it moves from padding to padding.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return x.index_select(0, there)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return upstream[0].index_select(0, back), None, None


def _move(x: Tensor, there: Tensor, back: Tensor) -> Tensor:
    moved: Tensor = _Move.apply(x, there, back)  # type: ignore[no-untyped-call] # torch has no types for it
    return moved
