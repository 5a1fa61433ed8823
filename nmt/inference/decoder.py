"""A Transformer that decodes one position at a time, as search needs it: earlier positions are cached.

The hypotheses of a sentence form a tree of nodes, one node per token. The cache holds the keys and values of all nodes.
A mask says which nodes a hypothesis descends from, so choosing hypotheses copies no keys, and all hypotheses of a
sentence are queries of one product.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import cast

import torch
from torch import Tensor, nn

from nmt.common.shapes import Float, Int
from nmt.ids import PAD
from nmt.inference.quantization import Int8Linear, is_quantized
from nmt.model import DecoderLayer, Transformer, attention
from nmt.packing import pack_tensor
from nmt.products import Fixed, by_onednn

_Linear = nn.Linear | Int8Linear
_MakeProduct = Callable[[Tensor, Tensor | None], Callable[[Tensor], Tensor]]
_ENCODED = 1024  # source positions that a CPU encodes together: few enough for its cache to hold what a layer writes
_ROOM = 16
"""Nodes for which a cache has room at first. Small, because a step writes to as many places as a batch has heads."""
_ROWS = 64
"""Hypotheses whose probabilities are computed together: enough for a product, few enough for the processor's cache."""
_FUSED = re.compile(r"decoder\.\d+\.(self_attention\.W_[QKV]|cross_attention\.W_[KV])")
"""The linear layers that are computed together with others."""


class Decoder:
    """A model for search. Some of its weights are copied, so do not change the model afterwards."""

    @torch.no_grad()
    def __init__(self, model: Transformer) -> None:
        self.model = model = _with_fixed_weights(model)
        product = Int8Linear if is_quantized(model) else Fixed
        layers = [cast("DecoderLayer", layer) for layer in model.decoder]
        self.layers = [_Layer(layer, product) for layer in layers]
        attentions = [layer.cross_attention for layer in layers]
        self.keys_values = _fused([part for cross in attentions for part in (cross.W_K, cross.W_V)], product)
        """The projections of the memory to keys and values of all layers, as one matrix."""
        self.output = product(model.output_table, None)

    @torch.inference_mode()
    def start(self, src: Int[Tensor, "batch src"]) -> DecodingState:
        """Read sentences of subword ids, EOS last, padded with PAD; each has one empty hypothesis."""
        return DecodingState(self, src)

    def read(self, src: Int[Tensor, "batch src"]) -> list[Tensor]:
        """Return keys and values of the memory, in turn, for each layer: [batch, h, src, d]."""
        cross = self.layers[0].layer.cross_attention
        sizes = [cross.W_K.out_features, cross.W_V.out_features] * len(self.layers)
        packed = pack_tensor(src, cross.h)
        projected = self.keys_values(self.model.encode(packed))
        return [packed.pad(part, cross.h)[0] for part in projected.split(sizes, dim=1)]


def _with_fixed_weights(model: Transformer) -> Transformer:
    """Return a copy with weights in oneDNN's order, and all other tensors shared; the model itself without oneDNN."""
    if is_quantized(model) or not by_onednn(model.output_table):
        return model
    copied = copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and not _FUSED.fullmatch(name):
            copied.set_submodule(name, Fixed(module.weight, module.bias))
    return copied


class _Layer:
    """A decoder layer with the three projections of its self-attention as one matrix."""

    def __init__(self, layer: DecoderLayer, product: _MakeProduct) -> None:
        self.layer, self_attention = layer, layer.self_attention
        parts: list[_Linear] = [self_attention.W_Q, self_attention.W_K, self_attention.W_V]
        # The rows of W_Q are divided by sqrt(d_k) here, so that queries need not be at every step.
        self.qkv = _fused(
            parts, product, [1 / math.sqrt(self_attention.W_Q.out_features // self_attention.h), 1.0, 1.0]
        )
        self.sizes = [part.out_features for part in parts]


def _fused(parts: Sequence[_Linear], product: _MakeProduct, scales: Sequence[float] = ()) -> Callable[[Tensor], Tensor]:
    """Several linear layers of one input as one product, each multiplied by its scale."""
    scaled = list(zip(parts, scales or [1.0] * len(parts), strict=True))
    biases = [part.bias * scale for part, scale in scaled if part.bias is not None]
    return product(torch.cat([part.weight * scale for part, scale in scaled]), torch.cat(biases) if biases else None)


class DecodingState:
    """A batch of partly translated sentences, each with the same number of hypotheses of the same length."""

    def __init__(self, decoder: Decoder, src: Int[Tensor, "batch src"]) -> None:
        self.model, self.layers, self.output = decoder.model, decoder.layers, decoder.output
        rows = len(src) if src.is_cuda else max(1, _ENCODED // src.shape[1])
        parts = map(decoder.read, src.split(rows))
        both = [torch.cat(of_parts).contiguous() for of_parts in zip(*parts, strict=True)]
        self.cross = list(zip(both[::2], both[1::2], strict=True))
        """Keys and values of the memory in every layer; contiguous, or every product of a step would copy them."""
        self.src_mask = both[0].new_zeros(src.shape).masked_fill_(src == PAD, -math.inf)[:, None, None]
        empty = both[0].new_empty(src.shape[0], 1, 0, 1)
        self.nodes = [[empty, empty] for _ in self.layers]
        """Keys and values of the nodes in every layer, [batch, h, nodes and room for more, d]."""
        self.mask = empty.new_zeros(src.shape[0], 1, 0)
        """Added to the scores, [batch, hypotheses, nodes]: 0 if the hypothesis descends from the node, else -inf."""
        self.position = 0

    @torch.inference_mode()
    def step(self, ids: Int[Tensor, "batch hypotheses"]) -> Iterator[Float[Tensor, "part hypotheses vocabulary"]]:
        """Return the log-probabilities of the next subword, given every hypothesis' last one (BOS at first).

        They come in parts of some sentences, in order: those of a large batch need not be in memory together.
        """
        batch, hypotheses = ids.shape
        embedding = self.model.target_embedding
        positions = embedding.positions(self.position + 1)[self.position :]
        x = embedding.embed(ids.flatten(), positions).view(batch, hypotheses, -1)
        itself = x.new_full((hypotheses, hypotheses), -math.inf).fill_diagonal_(0.0)
        self.mask = torch.cat((self.mask, itself.expand(batch, -1, -1)), dim=2)
        for projected, nodes, cross in zip(self.layers, self.nodes, self.cross, strict=True):
            x = self._layer(projected, x, nodes, cross)
        self.position += 1
        return map(self._log_probabilities, x.split(batch if x.is_cuda else max(1, _ROWS // hypotheses)))

    @torch.inference_mode()
    def _log_probabilities(
        self, x: Float[Tensor, "part hypotheses d_model"]
    ) -> Float[Tensor, "part hypotheses vocabulary"]:
        logits = self.output(x)
        # The sum over a vocabulary is too coarse in bfloat16 to rank hypotheses.
        logits = logits if logits.dtype == torch.float64 else logits.float()
        return torch.log_softmax(logits, dim=-1, out=logits)

    def _layer(
        self,
        projected: _Layer,
        x: Float[Tensor, "batch hypotheses d_model"],
        nodes: list[Tensor],
        cross: tuple[Tensor, Tensor],
    ) -> Float[Tensor, "batch hypotheses d_model"]:
        layer = projected.layer
        self_attention, cross_attention = layer.self_attention, layer.cross_attention
        parts = projected.qkv(x).split(projected.sizes, dim=2)
        Q, *new = (self_attention.split_heads(part) for part in parts)
        end = self.mask.shape[2]
        nodes[:] = [_append(old, end - x.shape[1], part) for old, part in zip(nodes, new, strict=True)]
        K, V = (part[:, :, :end] for part in nodes)
        heads = attention(Q, K, V, self.mask[:, None], scaled=True)
        x = layer.add_norms[0](x, self_attention.W_O(self_attention.join_heads(heads)))
        heads = attention(cross_attention.split_heads(cross_attention.W_Q(x)), *cross, self.src_mask)
        x = layer.add_norms[1](x, cross_attention.W_O(cross_attention.join_heads(heads)))
        return cast("Tensor", layer.add_norms[2](x, layer.feed_forward(x)))

    @torch.inference_mode()
    def select_hypotheses(self, origin: Int[Tensor, "batch chosen"]) -> None:
        """Continue with these hypotheses of each sentence, by their indices in the last step."""
        self.mask = self.mask.gather(1, origin[:, :, None].expand(-1, -1, self.mask.shape[2]))

    @torch.inference_mode()
    def select_sentences(self, sentences: Int[Tensor, "remaining"]) -> None:
        """Continue with these sentences only, by their indices in the batch."""
        end = self.mask.shape[2]
        self.nodes = [[part[:, :, :end].index_select(0, sentences) for part in nodes] for nodes in self.nodes]
        self.cross = [(K.index_select(0, sentences), V.index_select(0, sentences)) for K, V in self.cross]
        self.mask, self.src_mask = self.mask.index_select(0, sentences), self.src_mask.index_select(0, sentences)


def mean_of(
    steps: Sequence[Iterator[Float[Tensor, "part hypotheses vocabulary"]]],
) -> Iterator[Float[Tensor, "part hypotheses vocabulary"]]:
    """Return the logarithms of the mean of several models' probabilities, from the parts that each `step` gave."""
    if len(steps) == 1:
        return steps[0]
    # Logarithms, because the probabilities of float32 would become zero below 1e-45.
    return (reduce(torch.logaddexp, parts) - math.log(len(steps)) for parts in zip(*steps, strict=True))


def _append(
    old: Float[Tensor, "batch _h _room _d"], start: int, new: Float[Tensor, "batch h new d"]
) -> Float[Tensor, "batch h room d"]:
    """Write new nodes after the first `start`; return the tensor, or a copy of twice the size if it is full."""
    end = start + new.shape[2]
    if end > old.shape[2]:
        larger = new.new_empty(new.shape[0], new.shape[1], max(_ROOM, 2 * end), new.shape[3])
        larger[:, :, :start] = old[:, :, :start]
        old = larger
    old[:, :, start:end] = new
    return old
