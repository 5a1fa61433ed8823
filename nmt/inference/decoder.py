"""A Transformer one position at a time, as search and sampling ask for it: what came before is computed once.

The hypotheses of a sentence form a tree. Its nodes, one a token, keep their keys and values where they were first
written, and a mask says which of them a hypothesis descends from; so following a hypothesis copies no keys, and all
hypotheses of a sentence are queries of one product.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.common.shapes import Float, Int
from nmt.config import InputError
from nmt.model import DecoderLayer, MultiHeadAttention, Transformer, padding_mask

_POSITIONS = 2048
"""Positions that are computed beforehand."""


class State(ABC):
    """A batch of sentences in the course of decoding, with some hypotheses each, equally many and equally long."""

    @abstractmethod
    def step(self, ids: Int[Tensor, "batch hypotheses"]) -> Float[Tensor, "batch hypotheses vocabulary"]:
        """Log-probabilities of what follows, given the last token of every hypothesis (BOS at first)."""

    @abstractmethod
    def follow(self, origin: Int[Tensor, "batch chosen"]) -> None:
        """Go on with the given hypotheses of each sentence, by their places in the last step."""

    @abstractmethod
    def keep(self, sentences: Int[Tensor, "kept"]) -> None:
        """Go on with the given sentences, by their places in the batch."""


class Scorer(ABC):
    """What gives the probabilities that search and sampling work on: a model, or several."""

    @abstractmethod
    def start(self, src: Int[Tensor, "batch src"]) -> State:
        """Sentences as subword ids, EOS last, padded with PAD; one empty hypothesis each."""


class Decoder(Scorer):
    """One model, its weights laid out for decoding. They are copied: later changes of the model do not show."""

    @torch.no_grad()
    def __init__(self, model: Transformer) -> None:
        self.model = model
        if model.settings.positions == "sinusoidal":
            # The table of positions grows when a longer sentence comes, which threads had better not do together.
            zero = torch.zeros(1, 1, dtype=torch.long, device=model.output_table.device)
            model.target_embedding(zero, _POSITIONS)
            model.embedding(zero, _POSITIONS)
        layers = (cast("DecoderLayer", layer) for layer in model.decoder)
        self.layers = [_Layer.of(layer) for layer in layers]
        # On a CPU the product with a few rows is faster this way round.
        self.output = model.output_table.t().contiguous()

    @torch.inference_mode()
    def start(self, src: Int[Tensor, "batch src"]) -> State:
        """Encode the source and compute every layer's keys and values of it, once."""
        return _ModelState(self, src)


class Ensemble(Scorer):
    """Several models with one vocabulary: the mean of their probabilities."""

    def __init__(self, members: Sequence[Scorer]) -> None:
        """Raises InputError where there is none."""
        if not members:
            raise InputError("an ensemble needs at least one model: give one")
        self.members = members

    def start(self, src: Int[Tensor, "batch src"]) -> State:
        """Every member reads the source."""
        return _EnsembleState([member.start(src) for member in self.members])


class _EnsembleState(State):
    def __init__(self, states: Sequence[State]) -> None:
        self.states = states

    def step(self, ids: Int[Tensor, "batch hypotheses"]) -> Float[Tensor, "batch hypotheses vocabulary"]:
        total = self.states[0].step(ids)
        for state in self.states[1:]:
            total = torch.logaddexp(total, state.step(ids))
        return total - math.log(len(self.states))

    def follow(self, origin: Int[Tensor, "batch chosen"]) -> None:
        for state in self.states:
            state.follow(origin)

    def keep(self, sentences: Int[Tensor, "kept"]) -> None:
        for state in self.states:
            state.keep(sentences)


@dataclass(frozen=True)
class _Layer:
    """A decoder layer's self-attention with its three projections as one; the rest stays as it is."""

    layer: DecoderLayer
    qkv: Tensor
    """Queries are divided by sqrt(d_k) here, not at every step."""
    qkv_bias: Tensor | None
    sizes: tuple[int, int, int]

    @classmethod
    @torch.no_grad()
    def of(cls, layer: DecoderLayer) -> _Layer:
        attention = layer.self_attention
        parts = (attention.W_Q, attention.W_K, attention.W_V)
        root = math.sqrt(attention.W_Q.out_features // attention.h)
        scales = (1 / root, 1.0, 1.0)
        weight = torch.cat([part.weight * scale for part, scale in zip(parts, scales, strict=True)])
        biases = [part.bias * scale for part, scale in zip(parts, scales, strict=True) if part.bias is not None]
        query, key, value = (part.out_features for part in parts)
        return cls(layer, weight, torch.cat(biases) if biases else None, (query, key, value))


class _Nodes:
    """Keys and values of the nodes of every sentence's tree, in one layer."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def add(
        self, start: int, keys: Float[Tensor, "batch h new d_k"], values: Float[Tensor, "batch h new d_v"]
    ) -> tuple[Float[Tensor, "batch h nodes d_k"], Float[Tensor, "batch h nodes d_v"]]:
        """Write nodes from place `start` on; returns all so far. Room is doubled when it runs out."""
        end = start + keys.shape[2]
        if self.keys is None or self.values is None or end > self.keys.shape[2]:
            self.keys = _with_room(self.keys, keys, end)
            self.values = _with_room(self.values, values, end)
        self.keys[:, :, start:end] = keys
        self.values[:, :, start:end] = values
        return self.keys[:, :, :end], self.values[:, :, :end]

    def keep(self, sentences: Int[Tensor, "kept"], nodes: int) -> None:
        if self.keys is not None and self.values is not None:
            self.keys = self.keys[:, :, :nodes].index_select(0, sentences)
            self.values = self.values[:, :, :nodes].index_select(0, sentences)


def _with_room(old: Tensor | None, like: Tensor, needed: int) -> Tensor:
    new = like.new_empty(like.shape[0], like.shape[1], max(64, 2 * needed), like.shape[3])
    if old is not None:
        new[:, :, : old.shape[2]] = old
    return new


class _ModelState(State):
    def __init__(self, decoder: Decoder, src: Int[Tensor, "batch src"]) -> None:
        self.model, self.layers, self.output = decoder.model, decoder.layers, decoder.output
        src_mask = padding_mask(src)
        memory = self.model.encode(src, src_mask)
        self.src_mask = memory.new_zeros(src_mask.shape).masked_fill_(~src_mask, -math.inf)
        self.memory = [weights.layer.cross_attention.keys_values(memory) for weights in self.layers]
        self.nodes = [_Nodes() for _ in self.layers]
        # Which nodes each hypothesis descends from, as what is added to the scores: 0, or -inf.
        self.mask = memory.new_zeros(src.shape[0], 1, 0)
        self.position = 0

    @torch.inference_mode()
    def step(self, ids: Int[Tensor, "batch hypotheses"]) -> Float[Tensor, "batch hypotheses vocabulary"]:
        batch, hypotheses = ids.shape
        x = self.model.target_embedding(ids.reshape(-1, 1), self.position).view(batch, hypotheses, -1)
        start = self.mask.shape[2]
        itself = x.new_full((hypotheses, hypotheses), -math.inf).fill_diagonal_(0.0)
        self.mask = torch.cat((self.mask, itself.expand(batch, -1, -1)), dim=2)
        for weights, nodes, memory in zip(self.layers, self.nodes, self.memory, strict=True):
            x = self._layer(weights, x, nodes, start, memory)
        self.position += 1
        # In bfloat16 a sum over a vocabulary would lose what tells hypotheses apart.
        logits: Tensor = x @ self.output
        return (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(dim=-1)

    def _layer(
        self,
        weights: _Layer,
        x: Float[Tensor, "batch hypotheses d_model"],
        nodes: _Nodes,
        start: int,
        memory: tuple[Tensor, Tensor],
    ) -> Float[Tensor, "batch hypotheses d_model"]:
        layer = weights.layer
        attention = layer.self_attention
        Q, K, V = F.linear(x, weights.qkv, weights.qkv_bias).split(weights.sizes, dim=2)
        K, V = nodes.add(start, _heads(K, attention), _heads(V, attention))
        attended = _attend(_heads(Q, attention), K, V, self.mask[:, None])
        x = layer.add_norms[0](x, attention.W_O(attended))
        crossing = layer.cross_attention
        Q = crossing.W_Q(x)
        Q = _heads(Q / math.sqrt(Q.shape[2] // crossing.h), crossing)
        x = layer.add_norms[1](x, crossing.W_O(_attend(Q, *memory, self.src_mask)))
        return cast("Tensor", layer.add_norms[2](x, layer.feed_forward(x)))

    @torch.inference_mode()
    def follow(self, origin: Int[Tensor, "batch chosen"]) -> None:
        self.mask = self.mask.gather(1, origin[:, :, None].expand(-1, -1, self.mask.shape[2]))

    @torch.inference_mode()
    def keep(self, sentences: Int[Tensor, "kept"]) -> None:
        for nodes in self.nodes:
            nodes.keep(sentences, self.mask.shape[2])
        self.memory = [
            (keys.index_select(0, sentences), values.index_select(0, sentences)) for keys, values in self.memory
        ]
        self.mask, self.src_mask = self.mask.index_select(0, sentences), self.src_mask.index_select(0, sentences)


def _heads(x: Float[Tensor, "batch length width"], attention: MultiHeadAttention) -> Float[Tensor, "batch h length d"]:
    return x.view(x.shape[0], x.shape[1], attention.h, -1).transpose(1, 2)


def _attend(
    Q: Float[Tensor, "batch h query d_k"],
    K: Float[Tensor, "batch h key d_k"],
    V: Float[Tensor, "batch h key d_v"],
    mask: Float[Tensor, "batch 1 #query key"],
) -> Float[Tensor, "batch query width"]:
    """Eq. 1 with queries already scaled and a mask to be added; the heads' results side by side."""
    weights = (Q @ K.transpose(2, 3)).add_(mask).softmax(dim=-1)
    return (weights @ V).transpose(1, 2).flatten(2)
