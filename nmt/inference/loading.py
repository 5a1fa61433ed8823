"""Model folders, opened: weights, subwords and tokenizers that belong together; several of them for an ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from nmt.common.shapes import Int
from nmt.common.tensors import WEIGHTS
from nmt.config import EOS, PAD, InputError
from nmt.inference.decoder import Decoder, Ensemble, Scorer
from nmt.inference.model_folder import load_description, load_model
from nmt.inference.options import Precision
from nmt.model import Transformer
from nmt.text import codec
from nmt.text.codec import Tokenizer
from nmt.text.subwords import Subwords

PRECISIONS: dict[Precision, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Models:
    """One model folder, or several of one pair, tokenizer and vocabulary.

    Raises InputError where a folder is not complete, or parts or folders do not fit together.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        device: torch.device | None = None,
        precision: Precision = "float32",
        pair: tuple[str, str] | None = None,
        *,
        weights: bool = True,
    ) -> None:
        """`pair` is the one asked for, if any. Without `weights` texts can be coded, and that is all."""
        if not folders:
            raise InputError("no model folder is given: give at least one")
        self.folders = list(folders)
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        descriptions = [load_description(folder) for folder in folders]
        self.description = descriptions[0]
        self.subwords, self.target_subwords = codec.load(folders[0] / "subwords")
        description = self.description
        rows = (description.vocabulary, description.target_vocabulary or description.vocabulary)
        for row_count, vocabulary in zip(rows, (self.subwords, self.target_subwords), strict=True):
            if vocabulary.size != row_count:
                raise InputError(
                    f"{folders[0]}: the model has {row_count} rows, its subwords {vocabulary.size}: "
                    "the folder is put together of two models"
                )
        source, target = self.description.source, self.description.target
        if pair is not None and pair != (source, target):
            raise InputError(
                f"{folders[0]} translates {source}-{target}, but {'-'.join(pair)} is asked for: "
                "give a model of that pair"
            )
        for folder, other in zip(folders[1:], descriptions[1:], strict=True):
            self._check_member(folder, (other.source, other.target), other.tokenizer == self.description.tokenizer)
        self.source, self.target = codec.tokenizers(source, target, self.description.tokenizer)
        self.members: list[Transformer] = []
        for folder, description in zip(folders, descriptions, strict=True) if weights else ():
            if not (folder / WEIGHTS).exists() and (folder / "model.bin").exists():
                raise InputError(f"{folder} is a CTranslate2 model: use it with --engine ctranslate2")
            self.members.append(load_model(folder, description).to(self.device, PRECISIONS[precision]))

    def _check_member(self, folder: Path, pair: tuple[str, str], same_tokenizer: bool) -> None:
        first, ours = self.folders[0], (self.description.source, self.description.target)
        if pair != ours:
            raise InputError(
                f"{folder} translates {'-'.join(pair)}, {first} {'-'.join(ours)}: models of one ensemble share a pair"
            )
        both = codec.load(folder / "subwords")
        same = [
            theirs.size == own.size and theirs.symbols(range(own.size)) == own.symbols(range(own.size))
            for theirs, own in zip(both, (self.subwords, self.target_subwords), strict=True)
        ]
        if not (same_tokenizer and all(same)):
            raise InputError(
                f"{folder} has another tokenizer or vocabulary than {first}: "
                "models of one ensemble share tokenizer and subwords"
            )

    def scorer(self) -> Scorer:
        """What search asks for probabilities: the model, or the mean of several."""
        decoders = [Decoder(model) for model in self.members]
        return decoders[0] if len(decoders) == 1 else Ensemble(decoders)

    def encode(self, line: str) -> list[int]:
        """Subword ids of a raw source line, EOS last; none for a line without text."""
        return self._encode(line, self.source, self.subwords)

    def encode_target(self, line: str) -> list[int]:
        """The same for a target line."""
        return self._encode(line, self.target, self.target_subwords)

    def _encode(self, line: str, tokenizer: Tokenizer, vocabulary: Subwords) -> list[int]:
        ids = vocabulary.encode(tokenizer.tokenize(tokenizer.normalize(line)))
        return [*ids, EOS] if ids else []

    def decode(self, ids: list[int], source: str) -> str:
        """The detokenised text of a translation's ids; `source` is the raw line that it translates."""
        return self.target.detokenize(self.target_subwords.decode(ids), source)


def padded(sentences: Sequence[Sequence[int]], device: torch.device) -> Int[Tensor, "batch longest"]:
    """Sentences as one tensor, padded with PAD."""
    longest = max(len(ids) for ids in sentences)
    return torch.tensor([[*ids, *[PAD] * (longest - len(ids))] for ids in sentences], device=device)
