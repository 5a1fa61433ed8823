"""Attention weights of a pair of sentences, and the alignment of target and source that they give."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from nmt.common.shapes import Float
from nmt.ids import BOS
from nmt.inference.loading import padded
from nmt.model import MultiHeadAttention, Transformer, attention_weights

ATTENTIONS = ("encoder", "decoder", "cross")
"""Self-attention of the encoder, self-attention of the decoder, attention of the decoder to the memory."""


@torch.no_grad()
def attention_of(model: Transformer, source: Sequence[int], target: Sequence[int]) -> dict[str, Tensor]:
    """Return the weights of every layer and head by name; `source` ends in EOS, `target` has neither BOS nor EOS."""
    device = model.embedding.table.device
    weights: dict[str, list[Tensor]] = {name: [] for name in ATTENTIONS}
    caller = threading.get_ident()

    def record_weights(name: str, module: MultiHeadAttention, inputs: tuple[Any, ...]) -> None:
        if threading.get_ident() != caller:
            return  # A search in another thread uses the same modules.
        x, context, _, _, (mask,) = inputs  # of one sentence, which has no padding
        Q, K = module.split_heads(module.W_Q(x)[None]), module.split_heads(module.W_K(context)[None])
        weights[name].append(attention_weights(Q, K, mask)[0].float().cpu())

    modules = [("encoder", layer.self_attention) for layer in model.encoder]
    modules += [("decoder", layer.self_attention) for layer in model.decoder]
    modules += [("cross", layer.cross_attention) for layer in model.decoder]
    hooked = [(cast("MultiHeadAttention", module), partial(record_weights, name)) for name, module in modules]
    handles = [module.register_forward_pre_hook(hook) for module, hook in hooked]
    try:
        model(padded([source], device), padded([[BOS, *target]], device))
    finally:
        for handle in handles:
            handle.remove()
    return {name: torch.stack(layers) for name, layers in weights.items()}


def alignment(
    members: Sequence[Transformer], source: Sequence[int], target: Sequence[int]
) -> Float[Tensor, "target_and_eos source"]:
    """Return the last layer's attention to the source for each subword of the target and EOS: mean of heads, models."""
    return torch.stack([attention_of(model, source, target)["cross"][-1].mean(0) for model in members]).mean(0)
