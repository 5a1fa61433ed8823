"""Sentences one after the other, without padding: everything but attention works on one position at a time.

Attention needs the positions of a sentence side by side: `Packed.pad` gives them, in blocks of some sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmt.common.shapes import Bool, Float, Int
from nmt.ids import PAD


class _Pad(torch.autograd.Function):
    """The rows of packed positions in the places of padded ones; the padding's rows are copies of any."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Packed) -> Tensor:
        ctx.packed = packed
        return x.index_select(0, packed.padded)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        # Padding receives no gradient: as a key it has no weight, as a query it is left out.
        return upstream[0].index_select(0, ctx.packed.places), None


class _Unpad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Packed) -> Tensor:
        ctx.packed = packed
        return x.index_select(0, packed.places)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        dy, packed = upstream[0], ctx.packed
        return dy.new_zeros(len(packed.padded), dy.shape[1]).index_copy_(0, packed.places, dy), None


@dataclass(frozen=True)
class Packed:
    """One side of some sentences, in blocks that are padded to their longest sentence where sentences must align."""

    ids: Int[Tensor, "tokens"]
    positions: Int[Tensor, "tokens"]
    """Of each token in its sentence, from 0."""
    padded: Int[Tensor, "padded"]
    """For each position of the padded blocks, one after the other, the number of its token; any number at padding."""
    places: Int[Tensor, "tokens"]
    """For each token, its place among the positions of the padded blocks."""
    masks: list[Bool[Tensor, "_sentences 1 1 _longest"]]
    """Of each block, True at its tokens."""

    def pad(self, x: Float[Tensor, "tokens d"]) -> list[Tensor]:
        """Return the rows of each block's tokens as [sentences, longest, d]; those of padding have any values."""
        sizes = [mask.numel() for mask in self.masks]
        blocks = _Pad.apply(x, self).split(sizes)
        return [block.view(len(mask), -1, x.shape[1]) for block, mask in zip(blocks, self.masks, strict=True)]

    def unpad(self, blocks: Sequence[Float[Tensor, "_sentences _longest d"]]) -> Float[Tensor, "tokens d"]:
        """Return the rows of the tokens."""
        rows: Tensor = _Unpad.apply(torch.cat([block.flatten(0, 1) for block in blocks]), self)
        return rows

    def to(self, device: torch.device) -> Packed:
        """Copy to a device without blocking the host."""
        if device.type == "cpu":
            return self
        parts = (self.ids, self.positions, self.padded, self.places, *self.masks)
        ids, positions, padded, places, *masks = (part.pin_memory().to(device, non_blocking=True) for part in parts)
        return Packed(ids, positions, padded, places, masks)


def pack(blocks: Sequence[Int[np.ndarray, "_sentences _longest"]]) -> Packed:
    """Pack blocks of sentences that are padded with PAD at the end."""
    valid = [block != PAD for block in blocks]
    flat = np.concatenate([part.reshape(-1) for part in valid])
    places = np.flatnonzero(flat)
    padded = np.zeros(len(flat), dtype=np.int64)
    padded[places] = np.arange(len(places))
    columns = np.concatenate([np.broadcast_to(np.arange(part.shape[1]), part.shape).reshape(-1) for part in valid])
    ids = np.concatenate([block.reshape(-1) for block in blocks])
    parts = [torch.from_numpy(part) for part in (ids[places], columns[places], padded, places)]
    return Packed(parts[0], parts[1], parts[2], parts[3], [torch.from_numpy(part[:, None, None, :]) for part in valid])


def pack_tensor(ids: Int[Tensor, "sentences longest"]) -> Packed:
    """Pack sentences of one block, on their device."""
    return pack([ids.numpy(force=True)]).to(ids.device)
