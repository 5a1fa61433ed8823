"""Opens model folders: weights, subwords and tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from nmt.codec import Codec
from nmt.common.shapes import Int
from nmt.errors import InputError
from nmt.ids import PAD
from nmt.inference.model_folder import load_description, load_model
from nmt.schema import Precision


class LoadedModel(Codec):
    """A model folder, opened."""

    def __init__(self, folder: Path, device: torch.device | None = None, precision: Precision = "float32") -> None:
        """Raises InputError if the folder is incomplete, its parts do not fit together, or the device is missing."""
        if device and device.type == "cuda" and not torch.cuda.is_available():
            raise InputError("the device is cuda, but torch finds no GPU: give cpu")
        self.folder = folder
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.description = description = load_description(folder)
        super().__init__(folder / "subwords", description.source, description.target, description.tokenizer)
        rows = (description.vocabulary, description.target_vocabulary or description.vocabulary)
        sizes = (self.subwords.size, self.target_subwords.size)
        if rows != sizes:
            raise InputError(
                f"{folder}: the model has {rows[0]} and {rows[1]} rows for source and target, its subwords {sizes[0]} "
                f"and {sizes[1]}: the folder was put together of two models"
            )
        self.transformer = load_model(folder, description).to(self.device)
        for parameter in self.transformer.parameters():  # `to` would round the table of positions, which is a buffer.
            parameter.data = parameter.data.to(getattr(torch, precision))

    def check_shares_vocabulary(self, other: LoadedModel) -> None:
        """Raise InputError if another model reads or writes other ids: the two can make no ensemble."""
        if self._identity() != other._identity():
            raise InputError(
                f"{other.folder} has another pair, tokenizer or vocabulary than {self.folder}: "
                "models of one ensemble share all three"
            )

    def _identity(self) -> tuple[object, ...]:
        symbols = [rows.symbols(range(rows.size)) for rows in (self.subwords, self.target_subwords)]
        return self.description.source, self.description.target, self.description.tokenizer, symbols


def padded(sentences: Sequence[Sequence[int]], device: torch.device) -> Int[Tensor, "batch longest"]:
    """Return the ids of sentences as one tensor, with PAD at the end; raise ValueError without sentences."""
    longest = max(len(ids) for ids in sentences)
    return torch.tensor([[*ids, *[PAD] * (longest - len(ids))] for ids in sentences], device=device)
