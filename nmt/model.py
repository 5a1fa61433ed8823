"""The Transformer: section 3 of the paper, in the paper's order and symbols."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nmt import fused
from nmt.common.shapes import Float, Int
from nmt.errors import InputError
from nmt.fused import DROPOUT_STEPS, random_integers
from nmt.ids import PAD
from nmt.model_settings import ModelSettings
from nmt.packing import Packed, pack_tensor
from nmt.products import Linear, has_own_backward, linear, linears

LAYER_NORM_EPSILON = 1e-6  # from tensor2tensor; the paper gives no value


# Section 3.1: encoder and decoder stacks.


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward network, each as LayerNorm(x + Dropout(Sublayer(x)))."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(settings)
        self.feed_forward = FeedForward(settings)
        self.add_norms = nn.ModuleList(AddNorm(settings) for _ in range(2))

    def forward(self, x: Float[Tensor, "src d_model"], src: Packed) -> Float[Tensor, "src d_model"]:
        x = self.add_norms[0](x, self.self_attention(x, x, src, src, src.masks))
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
        x: Float[Tensor, "tgt d_model"],
        memory: Float[Tensor, "src d_model"],
        tgt: Packed,
        src: Packed,
        tgt_masks: list[Float[Tensor, "_longest _longest"]],
    ) -> Float[Tensor, "tgt d_model"]:
        x = self.add_norms[0](x, self.self_attention(x, x, tgt, tgt, tgt_masks))
        x = self.add_norms[1](x, self.cross_attention(x, memory, tgt, src, src.masks))
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
        if has_own_backward(x):
            return fused.add_norm(x, sublayer, self.norm, self.dropout.probability if self.training else 0.0)
        return self.norm(x + self.dropout(sublayer))


# Section 3.2: attention.


def attention_weights(
    Q: Float[Tensor, "batch h query d_k"],
    K: Float[Tensor, "batch h key d_k"],
    mask: Tensor | None,
    *,
    scaled: bool = False,
) -> Float[Tensor, "batch h query key"]:
    """Return softmax(QK^T / sqrt(d_k)). `scaled`: Q is already divided by sqrt(d_k).

    The mask is added to the scores: 0 where a query may attend, else -inf.
    """
    scores = (Q if scaled else Q / math.sqrt(Q.shape[-1])) @ K.transpose(-2, -1)
    if mask is not None:
        scores = scores.add_(mask)
    return scores.softmax(dim=-1)


def attention(
    Q: Float[Tensor, "batch h query d_k"],
    K: Float[Tensor, "batch h key d_k"],
    V: Float[Tensor, "batch h key d_v"],
    mask: Tensor | None,
    dropout: nn.Module | None = None,
    *,
    scaled: bool = False,
) -> Float[Tensor, "batch h query d_v"]:
    """Return softmax(QK^T / sqrt(d_k)) V, Eq. 1, by plain products; `mask` and `scaled` as in `attention_weights`."""
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
        # torch's FlashAttention has these widths and no dropout.
        known_width = settings.d_k == settings.d_v <= 256 and settings.d_k % 8 == 0
        self.allows_flash = known_width and not settings.attention_dropout

    def forward(
        self,
        x: Float[Tensor, "query d_model"],
        context: Float[Tensor, "key d_model"],
        queries: Packed,
        keys: Packed,
        masks: Sequence[Tensor],
    ) -> Float[Tensor, "query d_model"]:
        """Attend with queries from `x` to keys and values from `context`: the memory, or `x` in self-attention.

        Each sentence attends to the sentence of the same number; `masks` has one mask for each block.
        """
        if context is x:
            Q, K, V = linears(x, (self.W_Q, self.W_K, self.W_V))
        else:
            (Q,), (K, V) = linears(x, (self.W_Q,)), linears(context, (self.W_K, self.W_V))
        if has_own_backward(Q) and not (self.training and self.dropout.probability):
            return self.W_O(fused.attend(Q, K, V, queries, keys, masks, self.h))
        if keys.has_flash and self.allows_flash and Q.dtype == torch.bfloat16:
            # Masks that hide later positions are the same for all sentences, which the keys' own are not.
            return self.W_O(fused.flash_attend(Q, K, V, queries, keys, self.h, causal=masks[0].dim() == 2))
        if Q.dtype == torch.bfloat16 and torch.is_autocast_enabled("cpu"):
            Q, K, V = Q.float(), K.float(), V.float()  # products as small as attention's are slow in bfloat16 there
        with torch.autocast("cpu", enabled=False):
            blocks = zip(queries.pad(Q, self.h), keys.pad(K, self.h), keys.pad(V, self.h), masks, strict=True)
            heads = queries.unpad([attention(*block, self.dropout) for block in blocks])
        return self.W_O(heads)

    def split_heads(self, x: Float[Tensor, "batch length heads"]) -> Float[Tensor, "batch h length d"]:
        return x.unflatten(2, (self.h, -1)).transpose(1, 2)

    def join_heads(self, heads: Float[Tensor, "batch h length d"]) -> Float[Tensor, "batch length heads"]:
        return heads.transpose(1, 2).flatten(2)


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

    def forward(self, tokens: Packed) -> Float[Tensor, "tokens d_model"]:
        longest = max(mask.shape[-1] for mask in tokens.masks)
        return self.embed(tokens.ids, F.embedding(tokens.positions, self.positions(longest)))

    def embed(
        self, ids: Int[Tensor, "tokens"], positions: Float[Tensor, "#tokens d_model"]
    ) -> Float[Tensor, "tokens d_model"]:
        """Return the embeddings of tokens at positions with these encodings."""
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
        pe = self.pe  # Another thread may replace it.
        if length > len(pe):
            self.pe = pe = positional_encoding(2 * length, self.settings.d_model, self.settings.position_layout).to(pe)
        return pe[:length]


class Dropout(nn.Module):
    """Dropout (5.4). On a CPU, the probability is rounded to a multiple of 1/65,536."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        if not self.training or self.probability == 0.0:
            return x
        if not x.is_cpu:
            return F.dropout(x, self.probability)
        steps = round(self.probability * DROPOUT_STEPS)
        keep = random_integers(x) >= steps - DROPOUT_STEPS // 2
        return x * (keep.to(x.dtype) * (DROPOUT_STEPS / (DROPOUT_STEPS - steps)))


class Transformer(nn.Module):
    """Figure 1. Sources end with EOS, the decoder's input starts with BOS; both are padded with PAD at the end."""

    def __init__(self, settings: ModelSettings, vocabulary: int, target_vocabulary: int | None = None) -> None:
        """`target_vocabulary`: rows of the target's tables if they are not the source's `vocabulary`.

        Raises InputError if `sharing` is all and the sizes differ.
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
        """Return the decoder's output at every target position, 0 at padding; `logits` maps it to the
        vocabulary."""
        states = self.states(pack_tensor(src, self.settings.h), pack_tensor(tgt_in, self.settings.h))
        padded = states.new_zeros(*tgt_in.shape, states.shape[1])
        padded[tgt_in != PAD] = states
        return padded

    def states(self, src: Packed, tgt_in: Packed) -> Float[Tensor, "tgt d_model"]:
        """Do what `forward` does without padding."""
        return self.decode(tgt_in, self.encode(src), src)

    def encode(self, src: Packed) -> Float[Tensor, "src d_model"]:
        """Return the encoder's output, called memory."""
        x = self.embedding(src)
        for layer in self.encoder:
            x = layer(x, src)
        return x

    def decode(self, tgt_in: Packed, memory: Float[Tensor, "src d_model"], src: Packed) -> Float[Tensor, "tgt d_model"]:
        """Return the decoder's output at all target positions. Padding comes last, so no real one attends to it."""
        tgt_masks = [subsequent_mask(mask.shape[-1], memory.device) for mask in tgt_in.masks]
        x = self.target_embedding(tgt_in)
        for layer in self.decoder:
            x = layer(x, memory, tgt_in, src, tgt_masks)
        return x

    def logits(self, states: Float[Tensor, "... d_model"]) -> Float[Tensor, "... vocabulary"]:
        """Return the pre-softmax product, by default with the shared embedding (3.4)."""
        return linear(states, self.output_table)


def subsequent_mask(length: int, device: torch.device) -> Float[Tensor, "length length"]:
    """Return a mask that lets a query (row) attend to its own and to earlier positions (3.2.3): 0 there, else -inf."""
    earlier = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    return torch.zeros(length, length, device=device).masked_fill(~earlier, -math.inf)


def initialise(model: Transformer) -> None:
    """Draw the first weights; the paper gives no method. `model.initialisation` names the program to follow.

    All draw W_O Glorot uniform and embeddings from N(0, d_model^-0.5). A model on the meta device, whose weights are
    loaded later, stays as it is.
    """
    if model.output_table.is_meta:
        return
    for module in model.modules():
        if isinstance(module, nn.Linear):
            draw_together(module)
    for module in model.modules():
        if isinstance(module, (EncoderLayer, DecoderLayer)):
            initialise_layer(module, model.settings.initialisation)
    std = model.settings.d_model**-0.5
    for embedding in dict.fromkeys((model.embedding, model.target_embedding)):
        nn.init.normal_(embedding.table, std=std)
        if model.settings.positions == "learned":
            nn.init.normal_(embedding.learned, std=std)
    if model.settings.sharing == "none":
        nn.init.normal_(model.own_output, std=std)


def initialise_layer(layer: EncoderLayer | DecoderLayer, kind: str) -> None:
    """Draw what the programs draw differently: smaller ranges than Glorot's, with which attention learns faster."""
    self_attention, cross_attention = layer.self_attention, getattr(layer, "cross_attention", None)
    if kind == "tensor2tensor":
        draw_together(self_attention.W_Q, self_attention.W_K, self_attention.W_V)
        if cross_attention is not None:
            draw_together(cross_attention.W_K, cross_attention.W_V)
    elif kind == "fairseq":
        for attention in (self_attention, cross_attention) if cross_attention is not None else (self_attention,):
            for W in (attention.W_Q, attention.W_K, attention.W_V):
                nn.init.xavier_uniform_(W.weight, gain=math.sqrt(0.5))
                draw_bias(W)
        for W in (layer.feed_forward.W_1, layer.feed_forward.W_2):
            nn.init.uniform_(W.weight, -(W.in_features**-0.5), W.in_features**-0.5)
            draw_bias(W)


def draw_together(*parts: nn.Linear) -> None:
    """Draw maps of one input Glorot uniform as one matrix, whose range is smaller; set their biases to 0."""
    bound = math.sqrt(6 / (parts[0].in_features + sum(part.out_features for part in parts)))
    for part in parts:
        nn.init.uniform_(part.weight, -bound, bound)
        if part.bias is not None:
            nn.init.zeros_(part.bias)


def draw_bias(linear: nn.Linear) -> None:
    """Draw a bias as torch does by default."""
    if linear.bias is not None:
        nn.init.uniform_(linear.bias, -(linear.in_features**-0.5), linear.in_features**-0.5)
