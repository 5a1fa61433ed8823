"""Opens model folders: weights, subwords and tokenizers; several folders make an ensemble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from nmt.common.shapes import Int
from nmt.common.tensors import WEIGHTS
from nmt.config import EOS, PAD, InputError, Precision
from nmt.inference.decoder import Decoder, Ensemble, Scorer
from nmt.inference.model_folder import ModelDescription, load_description, load_model
from nmt.model import Transformer
from nmt.text import codec
from nmt.text.codec import Tokenizer
from nmt.text.subwords import Subwords

PRECISIONS: dict[Precision, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Models:
    """One model folder, or several with the same pair, tokenizer and vocabulary."""

    def __init__(
        self,
        folders: Sequence[Path],
        device: torch.device | None = None,
        precision: Precision = "float32",
        pair: tuple[str, str] | None = None,
        *,
        weights: bool = True,
    ) -> None:
        """Open folders; without `weights` they can only encode and decode text.

        Raises InputError if a folder is incomplete, parts or folders do not fit together, or the pair is not `pair`.
        """
        if not folders:
            raise InputError("no model folder is given: give at least one")
        self.folders = list(folders)
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.descriptions = descriptions = [load_description(folder) for folder in folders]
        self.description = descriptions[0]
        self.subwords, self.target_subwords = codec.load(folders[0] / "subwords")
        description = self.description
        rows = (description.vocabulary, description.target_vocabulary or description.vocabulary)
        for row_count, vocabulary in zip(rows, (self.subwords, self.target_subwords), strict=True):
            if vocabulary.size != row_count:
                raise InputError(
                    f"{folders[0]}: the model has {row_count} rows, its subwords {vocabulary.size}: "
                    "the folder was put together of two models"
                )
        source, target = self.description.source, self.description.target
        if pair is not None and pair != (source, target):
            raise InputError(
                f"{folders[0]} translates {source}-{target}, but {'-'.join(pair)} was requested: "
                "give a model of that pair"
            )
        for folder, other in zip(folders[1:], descriptions[1:], strict=True):
            self._check_member(folder, other)
        closed = self.target_subwords if self.subwords.settings.target == "closed" else None
        symbols = closed.symbols(range(closed.used_rows)) if closed else ()
        self.source, self.target = codec.tokenizers(source, target, self.description.tokenizer, symbols)
        self.members: list[Transformer] = []
        for folder, description in zip(folders, descriptions, strict=True) if weights else ():
            if not (folder / WEIGHTS).exists() and (folder / "model.bin").exists():
                raise InputError(f"{folder} is a CTranslate2 model: use it with --engine ctranslate2")
            self.members.append(load_model(folder, description).to(self.device, PRECISIONS[precision]))

    def _check_member(self, folder: Path, other: ModelDescription) -> None:
        first, own = self.folders[0], self.description
        pair, own_pair = f"{other.source}-{other.target}", f"{own.source}-{own.target}"
        if pair != own_pair:
            raise InputError(f"{folder} translates {pair}, {first} {own_pair}: models of one ensemble share a pair")
        symbols = [
            [vocabulary.symbols(range(vocabulary.size)) for vocabulary in both]
            for both in ((self.subwords, self.target_subwords), codec.load(folder / "subwords"))
        ]
        if other.tokenizer != own.tokenizer or symbols[0] != symbols[1]:
            raise InputError(
                f"{folder} has another tokenizer or vocabulary than {first}: "
                "models of one ensemble share tokenizer and subwords"
            )

    def scorer(self) -> Scorer:
        """Return what search takes probabilities from: the model, or the mean of several."""
        decoders = [Decoder(model) for model in self.members]
        return decoders[0] if len(decoders) == 1 else Ensemble(decoders)

    def encode(self, line: str) -> list[int]:
        """Return the subword ids of a raw source line, EOS last; none for a line without text."""
        return self._encode(line, self.source, self.subwords)

    def encode_target(self, line: str) -> list[int]:
        """Return the same for a target line."""
        return self._encode(line, self.target, self.target_subwords)

    def _encode(self, line: str, tokenizer: Tokenizer, vocabulary: Subwords) -> list[int]:
        # Subwords of raw text would keep the spaces of a blank line.
        ids = vocabulary.encode(tokenizer.tokenize(tokenizer.normalize(line))) if line.strip() else []
        return [*ids, EOS] if ids else []

    def decode(self, ids: list[int], source: str, attention: codec.Attention | None = None) -> str:
        """Return the detokenised text of a translation of the raw line `source`.

        `attention`: computes with which weights the translation was written; it helps to repair a tree.
        """
        return self.target.detokenize(self.target_subwords.decode(ids), source, attention)

    def repairs(
        self, ids: list[int], source: str, attention: codec.Attention | None = None
    ) -> Mapping[str, int] | None:
        """Return what `decode` has to repair in this translation to make a tree, by name; None where it makes text."""
        return self.target.repairs(self.target_subwords.decode(ids), source, attention)


def padded(sentences: Sequence[Sequence[int]], device: torch.device) -> Int[Tensor, "batch longest"]:
    """Return sentences as one tensor, padded with PAD."""
    longest = max(len(ids) for ids in sentences)
    return torch.tensor([[*ids, *[PAD] * (longest - len(ids))] for ids in sentences], device=device)
