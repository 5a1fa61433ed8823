"""Opens model folders: weights, subwords and tokenizers; several folders make an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from nmt import codec
from nmt.common.shapes import Int
from nmt.config import EOS, PAD, InputError, Precision
from nmt.inference.decoder import Decoder, Ensemble, Scorer
from nmt.inference.model_folder import ModelDescription, load_description, load_model
from nmt.model import Transformer
from nmt.text.subwords import Subwords


class Models:
    """One model folder, or several with the same pair, tokenizer and vocabulary."""

    def __init__(
        self,
        folders: Sequence[Path],
        device: torch.device | None = None,
        precision: Precision = "float32",
    ) -> None:
        """Raises InputError if a folder is incomplete, or parts or folders do not fit together."""
        self.folders = list(folders)
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.descriptions = descriptions = [load_description(folder) for folder in folders]
        self.description = descriptions[0]
        self.subwords, self.target_subwords = codec.load(folders[0] / "subwords")
        own = self.description
        rows = (own.vocabulary, own.target_vocabulary or own.vocabulary)
        sizes = (self.subwords.size, self.target_subwords.size)
        if rows != sizes:
            raise InputError(
                f"{folders[0]}: the model has {max(rows)} rows, its subwords {max(sizes)}: "
                "the folder was put together of two models"
            )
        for folder, other in zip(folders[1:], descriptions[1:], strict=True):
            self._check_member(folder, other)
        symbols: Sequence[str] = ()
        if self.subwords.settings.target == "closed":
            symbols = self.target_subwords.symbols(range(self.target_subwords.used_rows))
        self.source, self.target = codec.tokenizers(own.source, own.target, own.tokenizer, symbols)
        self.members: list[Transformer] = []
        for folder, description in zip(folders, descriptions, strict=True):
            member = load_model(folder, description).to(self.device)
            for parameter in member.parameters():  # `to` would round the table of positions, which is a buffer.
                parameter.data = parameter.data.to(getattr(torch, precision))
            self.members.append(member)

    def _check_member(self, folder: Path, other: ModelDescription) -> None:
        own = self.description
        symbols = [
            [vocabulary.symbols(range(vocabulary.size)) for vocabulary in both]
            for both in ((self.subwords, self.target_subwords), codec.load(folder / "subwords"))
        ]
        same = (other.source, other.target, other.tokenizer) == (own.source, own.target, own.tokenizer)
        if not same or symbols[0] != symbols[1]:
            raise InputError(
                f"{folder} has another pair, tokenizer or vocabulary than {self.folders[0]}: "
                "models of one ensemble share all three"
            )

    def scorer(self) -> Scorer:
        """Return what search takes probabilities from: the model, or the mean of several."""
        decoders = [Decoder(model) for model in self.members]
        return decoders[0] if len(decoders) == 1 else Ensemble(decoders)

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
