"""What decoding keeps of the positions before: keys and values, so that each is computed once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nmt.shapes import Bool, Float, Int


@dataclass
class LayerCache:
    """Keys and values of one decoder layer: of the source, and of the target positions decoded so far."""

    memory_keys: Float[Tensor, "batch h src d_k"]
    memory_values: Float[Tensor, "batch h src d_v"]
    keys: Tensor | None = None
    values: Tensor | None = None
    length: int = 0

    def append(self, keys: Float[Tensor, "rows h 1 d_k"], values: Float[Tensor, "rows h 1 d_v"]) -> None:
        """Add one position. Room is doubled when it runs out, so that a step copies one position, not all."""
        if self.keys is None or self.values is None or self.length == self.keys.shape[2]:
            room = max(16, self.length)
            self.keys = _with_room(self.keys, keys, room)
            self.values = _with_room(self.values, values, room)
        self.keys[:, :, self.length] = keys[:, :, 0]
        self.values[:, :, self.length] = values[:, :, 0]
        self.length += 1

    def past(self) -> tuple[Float[Tensor, "rows h past d_k"], Float[Tensor, "rows h past d_v"]]:
        """Keys and values of the positions so far."""
        assert self.keys is not None
        assert self.values is not None
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def reorder(self, rows: Int[Tensor, "rows"], memory_rows: Int[Tensor, "batch"] | None) -> None:
        """Keep the given rows, in the given order; `memory_rows` None leaves the sources as they are."""
        if self.keys is not None and self.values is not None:
            self.keys = self.keys.index_select(0, rows)
            self.values = self.values.index_select(0, rows)
        if memory_rows is not None:
            self.memory_keys = self.memory_keys.index_select(0, memory_rows)
            self.memory_values = self.memory_values.index_select(0, memory_rows)


def _with_room(old: Tensor | None, like: Tensor, room: int) -> Tensor:
    free = like.new_empty(like.shape[0], like.shape[1], room, like.shape[3])
    return free if old is None else torch.cat((old, free), dim=2)


@dataclass
class Cache:
    """All that decoding one more position needs besides its token."""

    layers: list[LayerCache]
    src_mask: Bool[Tensor, "batch 1 1 src"]
    position: int = 0

    def reorder(self, rows: Int[Tensor, "rows"], memory_rows: Int[Tensor, "batch"] | None) -> None:
        """Keep the given rows, in the given order, in every layer; `memory_rows` None leaves the sources alone."""
        for layer in self.layers:
            layer.reorder(rows, memory_rows)
        if memory_rows is not None:
            self.src_mask = self.src_mask.index_select(0, memory_rows)
