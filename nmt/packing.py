"""Sentences one after the other, without padding: everything but attention works on one position at a time.

Attention needs the positions of a sentence side by side, for each head: `Packed.pad` gives them, in blocks of some
sentences. FlashAttention needs `Packed.starts` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmt.common.shapes import Float, Int
from nmt.ids import PAD

STEPS = 16  # `pack` rounds up to one of so many numbers of rows between a power of two and the next
MOST = 64  # `pack` adds fewer rows than this


class _Pad(torch.autograd.Function):
    """`Packed.spread`. Padding receives no gradient: as a key it has no weight, as a query it is left out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Packed, heads: int) -> Tensor:
        ctx.packed = packed
        return packed.spread(x, heads)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        return ctx.packed.gather(upstream[0]), None, None


class _Unpad(torch.autograd.Function):
    """`Packed.gather`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Packed) -> Tensor:
        ctx.packed = packed
        return packed.gather(x)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        return ctx.packed.scatter(upstream[0]), None


@dataclass(frozen=True)
class Packed:
    """One side of some sentences, in blocks that are padded to their longest sentence where sentences must align."""

    ids: Int[Tensor, "rows"]  # the tokens of all sentences, then PAD in the rows that `pack` adds
    positions: Int[Tensor, "rows"]  # of each token in its sentence, from 0
    padded: Int[Tensor, "padded_heads"]
    """For each row of `pad`'s blocks, `token * heads + head`; 0 to heads - 1 for padding; then one extra entry, 0, for
    the rows that `pack` added."""
    places: Int[Tensor, "rows_heads"]
    """For each row and head, its index in `padded`; for the rows that `pack` added, the last index."""
    masks: list[Float[Tensor, "_sentences 1 1 _longest"]]
    """Of each block, for the scores of its tokens as keys: 0, and -inf at padding."""
    starts: Int[Tensor, "sentences_2"]
    """The first row of each sentence and of the rows that `pack` added, then the number of rows; int32."""
    heads: int
    has_flash: bool = False  # whether this is on a GPU for which torch has FlashAttention

    def pad(self, x: Float[Tensor, "rows heads_d"], heads: int) -> list[Tensor]:
        """Return each block's tokens as [sentences, heads, longest, d]; those of padding have any values."""
        blocks: list[Tensor] = self.blocks(_Pad.apply(x, self, heads))
        return [block.unflatten(0, (-1, heads)) for block in blocks]

    def unpad(self, blocks: Sequence[Float[Tensor, "_sentences heads _longest d"]]) -> Float[Tensor, "rows heads_d"]:
        """Return the tokens' rows, the heads one after the other; the rows that `pack` added are 0."""
        zeros = blocks[0].new_zeros(1, blocks[0].shape[3])
        rows: Tensor = _Unpad.apply(torch.cat([*(block.flatten(0, 2) for block in blocks), zeros]), self)
        return rows

    def blocks(self, x: Float[Tensor, "padded_heads d"]) -> list[Float[Tensor, "_sentences_heads _longest d"]]:
        """Return the part of each block."""
        *parts, _ = x.split([*(self.heads * mask.numel() for mask in self.masks), 1])
        return [part.view(-1, mask.shape[3], x.shape[1]) for part, mask in zip(parts, self.masks, strict=True)]

    def spread(self, x: Float[Tensor, "rows heads_d"], heads: int) -> Float[Tensor, "padded_heads d"]:
        """Return the heads of rows in the places of all blocks; those of padding have any values."""
        if heads != self.heads:
            raise ValueError(f"the sentences are packed for {self.heads} heads, not {heads}")
        return x.reshape(len(x) * self.heads, -1).index_select(0, self.padded)

    def gather(self, x: Float[Tensor, "padded_heads d"]) -> Float[Tensor, "rows heads_d"]:
        """Return the heads of the tokens, and the last of `x` in the rows that `pack` added."""
        return x.index_select(0, self.places).view(len(self.ids), -1)

    def scatter(self, x: Float[Tensor, "rows heads_d"]) -> Float[Tensor, "padded_heads d"]:
        """Return the heads of rows in the places of all blocks, and 0 in the padding's."""
        heads = x.reshape(len(self.places), -1)
        return heads.new_zeros(len(self.padded), heads.shape[1]).index_copy_(0, self.places, heads)

    def to(self, device: torch.device) -> Packed:
        """Copy to a device without blocking the host."""
        if device.type == "cpu":
            return self
        parts = (self.ids, self.positions, self.padded, self.places, self.starts, *self.masks)
        moved = (part.pin_memory().to(device, non_blocking=True) for part in parts)
        ids, positions, padded, places, starts, *masks = moved
        has_flash = device.type == "cuda" and torch.cuda.get_device_properties(device).major >= 8
        return Packed(ids, positions, padded, places, masks, starts, self.heads, has_flash)


def pack(blocks: Sequence[Int[np.ndarray, "_sentences _longest"]], heads: int = 1, *, rounded: bool = False) -> Packed:
    """Pack blocks of sentences that are padded with PAD at the end, for attention of so many heads.

    `rounded`: add rows, at most a sixteenth, up to a round number. Batches of equally many rows share code that oneDNN
    makes for each shape of a product, in some 0.4 ms.
    """
    ids, columns, padded, places, starts, tokens, before = [], [], [], [], [], 0, 0
    head = np.arange(heads)
    for block in blocks:
        sentence, column = np.nonzero(block != PAD)
        numbers = np.zeros(block.shape, dtype=np.int64)
        numbers[sentence, column] = np.arange(tokens, tokens + len(sentence))
        padded.append((numbers[:, None, :] * heads + head[:, None]).reshape(-1))
        first = before + sentence * heads * block.shape[1] + column
        places.append((first[:, None] + head * block.shape[1]).reshape(-1))
        starts.append(tokens + np.flatnonzero(column == 0))
        ids.append(block[sentence, column])
        columns.append(column)
        tokens, before = tokens + len(sentence), before + heads * block.size
    step = min(MOST, max(1, (1 << tokens.bit_length() - 1) // STEPS)) if rounded else 1
    added = np.zeros(-tokens % step, dtype=np.int64)
    ids.append(added + PAD)
    columns.append(added)
    padded.append(np.zeros(1, dtype=np.int64))
    places.append(np.full(heads * len(added), before))
    parts = [torch.from_numpy(np.concatenate(part)) for part in (ids, columns, padded, places)]
    first_rows = np.concatenate([*starts, [tokens, tokens + len(added)]]).astype(np.int32)
    masks = [
        torch.from_numpy(np.where(block == PAD, -np.inf, 0.0).astype(np.float32))[:, None, None] for block in blocks
    ]
    return Packed(parts[0], parts[1], parts[2], parts[3], masks, torch.from_numpy(first_rows), heads)


def pack_tensor(ids: Int[Tensor, "sentences longest"], heads: int = 1) -> Packed:
    """Pack sentences of one block, on their device."""
    return pack([ids.numpy(force=True)], heads).to(ids.device)
