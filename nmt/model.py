"""The Transformer: section 3 of the paper, in the paper's order and symbols."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt.common.shapes import Bool, Float, Int
from nmt.errors import InputError
from nmt.ids import PAD
from nmt.model_settings import ModelSettings
from nmt.products import Linear, linear

LAYER_NORM_EPSILON = 1e-6
"""From tensor2tensor; the paper gives no value."""
DROPOUT_STEPS = 65_536
"""Dropout on a CPU draws 16-bit integers, which rounds probabilities to multiples of 1 / DROPOUT_STEPS."""
Mask = Bool[Tensor, "..."] | Float[Tensor, "..."] | None


# Section 3.1: encoder and decoder stacks.


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward network, each as LayerNorm(x + Dropout(Sublayer(x)))."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(settings)
        self.feed_forward = FeedForward(settings)
        self.add_norms = nn.ModuleList(AddNorm(settings) for _ in range(2))

    def forward(
        self, x: Float[Tensor, "batch src d_model"], src_mask: Bool[Tensor, "batch 1 1 src"]
    ) -> Float[Tensor, "batch src d_model"]:
        x = self.add_norms[0](x, self.self_attention(x, x, src_mask))
        return self.add_norms[1](x, self.feed_forward(x))


class DecoderLayer(nn.Module):
    """The encoder's layer with a third sub-layer in the middle: attention over the encoder's output."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(settings)
        self.cross_attention = MultiHeadAttention(settings)
        self.feed_forward = FeedForward(settings)
        self.add_norms = nn.ModuleList(AddNorm(settings) for _ in range(3))

    def forward(
        self,
        x: Float[Tensor, "batch tgt d_model"],
        memory: Float[Tensor, "batch src d_model"],
        src_mask: Bool[Tensor, "batch 1 1 src"],
        tgt_mask: Bool[Tensor, "tgt tgt"],
    ) -> Float[Tensor, "batch tgt d_model"]:
        x = self.add_norms[0](x, self.self_attention(x, x, tgt_mask))
        x = self.add_norms[1](x, self.cross_attention(x, memory, src_mask))
        return self.add_norms[2](x, self.feed_forward(x))


class AddNorm(nn.Module):
    """LayerNorm(x + Dropout(Sublayer(x))): the residual connection around every sub-layer."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.dropout = Dropout(settings.P_drop)
        self.norm = nn.LayerNorm(settings.d_model, eps=LAYER_NORM_EPSILON)

    def forward(
        self, x: Float[Tensor, "*positions d_model"], sublayer: Float[Tensor, "*positions d_model"]
    ) -> Float[Tensor, "*positions d_model"]:
        return self.norm(x + self.dropout(sublayer))


# Section 3.2: attention.


def attention_weights(
    Q: Float[Tensor, "batch h query d_k"], K: Float[Tensor, "batch h key d_k"], mask: Mask, *, scaled: bool = False
) -> Float[Tensor, "batch h query key"]:
    """Return softmax(QK^T / sqrt(d_k)). `scaled`: Q is already divided by sqrt(d_k).

    A boolean mask is True where a query may attend; scores elsewhere become -inf. A mask of numbers is added.
    """
    scores = (Q if scaled else Q / math.sqrt(Q.shape[-1])) @ K.transpose(-2, -1)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores.add_(mask)
    return scores.softmax(dim=-1)


def attention(
    Q: Float[Tensor, "batch h query d_k"],
    K: Float[Tensor, "batch h key d_k"],
    V: Float[Tensor, "batch h key d_v"],
    mask: Mask,
    dropout: nn.Module | None = None,
    *,
    scaled: bool = False,
) -> Float[Tensor, "batch h query d_v"]:
    """Return softmax(QK^T / sqrt(d_k)) V, Eq. 1; `mask` and `scaled` as in `attention_weights`.

    Uses plain products: fused attention kernels compute tiles of fixed size, which short sentences leave mostly empty.
    """
    weights = attention_weights(Q, K, mask, scaled=scaled)
    return (weights if dropout is None else dropout(weights)) @ V


class MultiHeadAttention(nn.Module):
    """Concat(head_1, ..., head_h) W_O with head_i = Attention(Q W_Q_i, K W_K_i, V W_V_i); section 3.2.2."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.h = settings.h
        bias = settings.projection_biases
        self.W_Q = Linear(settings.d_model, settings.h * settings.d_k, bias)
        self.W_K = Linear(settings.d_model, settings.h * settings.d_k, bias)
        self.W_V = Linear(settings.d_model, settings.h * settings.d_v, bias)
        self.W_O = Linear(settings.h * settings.d_v, settings.d_model, bias)
        self.dropout = Dropout(settings.attention_dropout)

    def forward(
        self, x: Float[Tensor, "batch query d_model"], context: Float[Tensor, "batch key d_model"], mask: Mask
    ) -> Float[Tensor, "batch query d_model"]:
        """Attend with queries from `x` to keys and values from `context`: the memory, or `x` in self-attention."""
        if x.is_cpu:
            return self.attend(x, self.split_heads(self.W_K(context)), self.split_heads(self.W_V(context)), mask)
        # The same as one product for each input: GPUs are faster with few large ones, CPUs are not.
        if context is x:
            Q, K, V = self.project(x, self.W_Q, self.W_K, self.W_V)
        else:
            (Q,), (K, V) = self.project(x, self.W_Q), self.project(context, self.W_K, self.W_V)
        return self.merge_heads(attention(Q, K, V, mask, self.dropout))

    def project(self, x: Float[Tensor, "batch length d_model"], *parts: nn.Linear) -> list[Tensor]:
        """Return x W + b of each part by one product, split into heads, [batch, h, length, d]."""
        weight, bias = torch.cat([part.weight for part in parts]), None
        if parts[0].bias is not None:
            bias = torch.cat([part.bias for part in parts])
        projected = F.linear(x, weight, bias).split([part.out_features for part in parts], dim=2)
        return [self.split_heads(heads) for heads in projected]

    def attend(
        self,
        x: Float[Tensor, "batch query d_model"],
        K: Float[Tensor, "batch h key d_k"],
        V: Float[Tensor, "batch h key d_v"],
        mask: Mask,
    ) -> Float[Tensor, "batch query d_model"]:
        return self.merge_heads(attention(self.split_heads(self.W_Q(x)), K, V, mask, self.dropout))

    def merge_heads(self, heads: Float[Tensor, "batch h query d_v"]) -> Float[Tensor, "batch query d_model"]:
        return self.W_O(heads.transpose(1, 2).flatten(2))

    def split_heads(self, x: Float[Tensor, "batch length heads"]) -> Float[Tensor, "batch h length d"]:
        return x.unflatten(2, (self.h, -1)).transpose(1, 2)


# Section 3.3: position-wise feed-forward networks.


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2, Eq. 2."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.W_1 = Linear(settings.d_model, settings.d_ff)
        self.W_2 = Linear(settings.d_ff, settings.d_model)
        self.dropout = Dropout(settings.relu_dropout)

    def forward(self, x: Float[Tensor, "*positions d_model"]) -> Float[Tensor, "*positions d_model"]:
        return self.W_2(self.dropout(self.W_1(x, relu=True)))


# Section 3.4: embeddings and softmax; 3.5: positional encoding.


def positional_encoding(length: int, d_model: int, layout: str = "interleaved") -> Float[Tensor, "length d_model"]:
    """Return PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos of the same; `halves`: sines first."""
    # On the CPU by name: on the meta device, where models are made without memory, arange imports torch's compiler.
    position = torch.arange(length, dtype=torch.float64, device="cpu")[:, None]
    angle = position / 10000 ** (torch.arange(0, d_model, 2, dtype=torch.float64, device="cpu") / d_model)
    if layout == "interleaved":
        return torch.stack((angle.sin(), angle.cos()), dim=2).flatten(1).float()
    return torch.cat((angle.sin(), angle.cos()), dim=1).float()


class Embedding(nn.Module):
    """A table times sqrt(d_model), plus positions. With `sharing: all` it is one for source, target and softmax."""

    pe: Tensor

    def __init__(self, settings: ModelSettings, vocabulary: int) -> None:
        super().__init__()
        self.settings = settings
        self.table = nn.Parameter(torch.empty(vocabulary, settings.d_model))
        self.dropout = Dropout(settings.P_drop)
        if settings.positions == "learned":
            self.learned = nn.Parameter(torch.empty(settings.max_positions, settings.d_model))
        else:
            pe = positional_encoding(512, settings.d_model, settings.position_layout)
            self.register_buffer("pe", pe, persistent=False)

    def forward(self, ids: Int[Tensor, "batch length"], start: int = 0) -> Float[Tensor, "batch length d_model"]:
        """Return the embeddings of `ids` at positions `start`, `start` + 1, ..."""
        positions = self.positions(start + ids.shape[1])[start:]
        # In the precision of the positions, which are float32 where the table is bfloat16.
        scaled = F.embedding(ids, self.table).to(positions.dtype) * math.sqrt(self.settings.d_model)
        return self.dropout((scaled + positions).to(self.table.dtype))

    def positions(self, length: int) -> Float[Tensor, "length d_model"]:
        """Return the encodings of the first positions; raise InputError if the table of learned ones is shorter."""
        if self.settings.positions == "learned":
            if length > self.settings.max_positions:
                raise InputError(
                    f"a sentence has {length} subwords, but model.max_positions is {self.settings.max_positions}: "
                    "split the sentence, or train with more learned positions"
                )
            return self.learned[:length]
        if length > len(self.pe):
            self.pe = positional_encoding(2 * length, self.settings.d_model, self.settings.position_layout).to(self.pe)
        return self.pe[:length]


class Dropout(nn.Module):
    """Dropout (5.4). On a CPU the mask is drawn as 16-bit integers, four from each 64-bit draw, for speed.

    This rounds the probability to a multiple of 1/65,536.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        if not self.training or self.probability == 0.0:
            return x
        if not x.is_cpu:
            return F.dropout(x, self.probability)
        # The full range: the default would leave the sign bit of every fourth 16-bit integer 0.
        drawn = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        dropped = round(self.probability * DROPOUT_STEPS)
        keep = (drawn.view(torch.int16)[: x.numel()] >= dropped - DROPOUT_STEPS // 2).view(x.shape)
        return x * (keep.to(x.dtype) * (DROPOUT_STEPS / (DROPOUT_STEPS - dropped)))


class Transformer(nn.Module):
    """Figure 1. Ids are padded with PAD at the end; the decoder's input starts with BOS."""

    def __init__(self, settings: ModelSettings, vocabulary: int, target_vocabulary: int | None = None) -> None:
        """`target_vocabulary`: rows of the target's tables if they are not the source's `vocabulary`.

        Raises InputError where one table should have both.
        """
        super().__init__()
        if settings.sharing == "all" and target_vocabulary not in (None, vocabulary):
            raise InputError(
                f"model.sharing is all, but the source has {vocabulary:,} rows and the target {target_vocabulary:,}: "
                "give model.sharing output or none"
            )
        self.settings = settings
        rows = target_vocabulary or vocabulary
        self.embedding = Embedding(settings, vocabulary)
        self.encoder = nn.ModuleList(EncoderLayer(settings) for _ in range(settings.N))
        if settings.sharing != "all":
            self.own_target_embedding = Embedding(settings, rows)
        self.decoder = nn.ModuleList(DecoderLayer(settings) for _ in range(settings.N))
        if settings.sharing == "none":
            self.own_output = nn.Parameter(torch.empty(rows, settings.d_model))
        initialise(self)

    @property
    def target_embedding(self) -> Embedding:
        """The target's embedding: with `sharing: all`, the source's."""
        return self.embedding if self.settings.sharing == "all" else self.own_target_embedding

    @property
    def output_table(self) -> Tensor:
        """The table of the pre-softmax product, [target vocabulary, d_model]: the target's unless `sharing: none`."""
        return self.own_output if self.settings.sharing == "none" else self.target_embedding.table

    def forward(
        self, src: Int[Tensor, "batch src"], tgt_in: Int[Tensor, "batch tgt"]
    ) -> Float[Tensor, "batch tgt d_model"]:
        """Return the decoder's output at every target position; `logits` or the loss maps it to the vocabulary."""
        src_mask = padding_mask(src)
        return self.decode(tgt_in, self.encode(src, src_mask), src_mask)

    def encode(
        self, src: Int[Tensor, "batch src"], src_mask: Bool[Tensor, "batch 1 1 src"]
    ) -> Float[Tensor, "batch src d_model"]:
        """Return the encoder's output, called memory."""
        x = self.embedding(src)
        for layer in self.encoder:
            x = layer(x, src_mask)
        return x

    def decode(
        self,
        tgt_in: Int[Tensor, "batch tgt"],
        memory: Float[Tensor, "batch src d_model"],
        src_mask: Bool[Tensor, "batch 1 1 src"],
    ) -> Float[Tensor, "batch tgt d_model"]:
        """Return the decoder's output at all target positions. Padding comes last, so no real one attends to it."""
        tgt_mask = subsequent_mask(tgt_in.shape[1], tgt_in.device)
        x = self.target_embedding(tgt_in)
        for layer in self.decoder:
            x = layer(x, memory, src_mask, tgt_mask)
        return x

    def logits(self, states: Float[Tensor, "... d_model"]) -> Float[Tensor, "... vocabulary"]:
        """Return the pre-softmax product, by default with the shared embedding (3.4)."""
        return linear(states, self.output_table)


def padding_mask(ids: Int[Tensor, "batch length"]) -> Bool[Tensor, "batch 1 1 length"]:
    return (ids != PAD)[:, None, None, :]


def subsequent_mask(length: int, device: torch.device) -> Bool[Tensor, "length length"]:
    """Return a mask that is True where a query (row) may attend: at its own and at earlier positions (3.2.3)."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def initialise(model: Transformer) -> None:
    """Initialise projections Glorot uniform, embeddings N(0, d_model^-0.5), as tensor2tensor of June 2017 does.

    The paper gives no method. `glorot_fused` also draws q, k, v of self-attention as one matrix, as tensor2tensor.
    A model on the meta device, whose weights are loaded later, stays as it is.
    """
    if model.output_table.is_meta:
        return
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    if model.settings.initialisation == "glorot_fused":
        for layer in (*model.encoder, *model.decoder):
            own = layer.self_attention
            fused = torch.cat([own.W_Q.weight, own.W_K.weight, own.W_V.weight])
            bound = math.sqrt(6 / sum(fused.shape))  # the larger fan-out makes the range smaller
            nn.init.uniform_(own.W_Q.weight, -bound, bound)
            nn.init.uniform_(own.W_K.weight, -bound, bound)
            nn.init.uniform_(own.W_V.weight, -bound, bound)
    std = model.settings.d_model**-0.5
    for embedding in dict.fromkeys((model.embedding, model.target_embedding)):
        nn.init.normal_(embedding.table, std=std)
        if model.settings.positions == "learned":
            nn.init.normal_(embedding.learned, std=std)
    if model.settings.sharing == "none":
        nn.init.normal_(model.own_output, std=std)
