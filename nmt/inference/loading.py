"""Opens model folders: weights, subwords and tokenizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from nmt import codec
from nmt.common.shapes import Int
from nmt.errors import InputError
from nmt.ids import EOS, PAD
from nmt.inference.model_folder import load_description, load_model
from nmt.schema import Precision
from nmt.text.subwords import Subwords


class LoadedModel:
    """A model folder, opened."""

    def __init__(self, folder: Path, device: torch.device | None = None, precision: Precision = "float32") -> None:
        """Raises InputError if the folder is incomplete, or its parts do not fit together."""
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.description = own = load_description(folder)
        self.subwords, self.target_subwords = codec.load(folder / "subwords")
        rows = (own.vocabulary, own.target_vocabulary or own.vocabulary)
        sizes = (self.subwords.size, self.target_subwords.size)
        if rows != sizes:
            raise InputError(
                f"{folder}: the model has {max(rows)} rows, its subwords {max(sizes)}: "
                "the folder was put together of two models"
            )
        symbols: Sequence[str] = ()
        if self.subwords.settings.target == "closed":
            symbols = self.target_subwords.symbols(range(self.target_subwords.used_rows))
        self.source, self.target = codec.tokenizers(own.source, own.target, own.tokenizer, symbols)
        self.transformer = load_model(folder, own).to(self.device)
        for parameter in self.transformer.parameters():  # `to` would round the table of positions, which is a buffer.
            parameter.data = parameter.data.to(getattr(torch, precision))

    def encode(self, line: str) -> list[int]:
        """Return the subword ids of a raw source line, EOS last; none for a line without text."""
        return _encode(line, self.source.tokenize, self.subwords)

    def encode_target(self, line: str) -> list[int]:
        return _encode(line, self.target.tokenize, self.target_subwords)


def _encode(line: str, tokenize: Callable[[str], str], vocabulary: Subwords) -> list[int]:
    # Subwords of raw text would keep the spaces of a blank line.
    ids = vocabulary.encode(tokenize(line)) if line.strip() else []
    return [*ids, EOS] if ids else []


def padded(sentences: Sequence[Sequence[int]], device: torch.device) -> Int[Tensor, "batch longest"]:
    longest = max(len(ids) for ids in sentences)
    return torch.tensor([[*ids, *[PAD] * (longest - len(ids))] for ids in sentences], device=device)
