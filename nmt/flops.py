"""The cost of training: exact parameter counts and counted operations.

A multiplication and an addition are two operations, as in torch's FlopCounterMode.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from nmt.model_settings import ModelSettings


def parameters(model: ModelSettings, vocabulary: int, target_vocabulary: int | None = None) -> int:
    """Return the number of trainable parameters, by default with one embedding of `vocabulary` rows for all (3.4).

    `sharing` adds tables of `target_vocabulary` rows, or of `vocabulary` where there is none. Layer norms and the
    feed-forward network's biases always count; the attention's biases with `projection_biases`; with
    `positions: learned`, a table of positions for each embedding.
    """
    d, heads_k, heads_v = model.d_model, model.h * model.d_k, model.h * model.d_v
    attention = d * (2 * heads_k + heads_v) + heads_v * d
    if model.projection_biases:
        attention += 2 * heads_k + heads_v + d
    feed_forward = 2 * d * model.d_ff + model.d_ff + d
    norm = 2 * d
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    positions = model.max_positions * d if model.positions == "learned" else 0
    target_tables, embeddings = {"all": (0, 1), "output": (1, 2), "none": (2, 2)}[model.sharing]
    tables = vocabulary + target_tables * (target_vocabulary or vocabulary)
    return tables * d + model.N * (encoder + decoder) + embeddings * positions


@dataclass(frozen=True)
class LengthSums:
    """Sums over sentence pairs that determine the operations; lengths in subwords, EOS included, without padding."""

    pairs: int = 0
    source: int = 0
    target: int = 0
    source_squared: int = 0
    target_squared: int = 0
    product: int = 0

    def __add__(self, other: LengthSums) -> LengthSums:
        return LengthSums(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(LengthSums)))


def training_flops(model: ModelSettings, vocabulary: int, sums: LengthSums) -> int:
    """Return the operations of all matrix products of forward and backward passes over pairs, without padding.

    The backward pass has twice the forward's: each product has two gradients. The decoder's self-attention counts as
    the full square, which plain products compute. Element-wise operations are not counted, as in FlopCounterMode.
    `vocabulary` is the target's.
    """
    d, heads_k, heads_v = model.d_model, model.h * model.d_k, model.h * model.d_v
    # Queries and output; keys and values have as many.
    projections = 2 * d * (heads_k + heads_v)
    feed_forward = 4 * d * model.d_ff
    weights_and_sums = 2 * (heads_k + heads_v)
    encoder = (2 * projections + feed_forward) * sums.source + weights_and_sums * sums.source_squared
    decoder = (3 * projections + feed_forward) * sums.target + projections * sums.source
    decoder += weights_and_sums * (sums.target_squared + sums.product)
    logits = 2 * d * vocabulary * sums.target
    return 3 * (model.N * (encoder + decoder) + logits)
