"""Sentences to sentences, from a model folder alone: `python -m nmt.translate MODEL_DIR < text`."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from nmt import subwords
from nmt.checkpoint import load_description, load_model
from nmt.config import EOS, PAD, InputError, SearchSettings
from nmt.moses import Moses
from nmt.search import search

WINDOW = 2048
"""Lines sorted by length together: memory follows this, not the input."""


class Translator:
    """A model folder, ready to translate.

    Raises InputError where the folder is not complete or its parts do not fit together.
    """

    def __init__(
        self, folder: Path, device: torch.device | None = None, settings: SearchSettings | None = None
    ) -> None:
        self.description = load_description(folder)
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.subwords = subwords.load(folder / "subwords")
        if self.subwords.size != self.description.vocabulary:
            raise InputError(
                f"{folder}: the model has {self.description.vocabulary} rows, its subwords {self.subwords.size}: "
                "the folder is put together of two models"
            )
        self.model = load_model(folder, self.description).to(self.device)
        self.settings = settings or self.description.search
        self.source = Moses(self.description.source, self.description.tokenizer)
        self.target = Moses(self.description.target, self.description.tokenizer)

    def translate(self, lines: Iterable[str], batch_tokens: int = 4096) -> Iterator[str]:
        """A translation for each line, in order; an empty line for an empty one.

        `batch_tokens` bounds the source positions searched at a time, padding included, all beams counted.
        """
        lines = iter(lines)
        while window := list(itertools.islice(lines, WINDOW)):
            encoded = [self.encode(line) for line in window]
            translated = [""] * len(window)
            for batch in batches(encoded, max(1, batch_tokens // self.settings.beam)):
                for index, text in zip(batch, self._search([encoded[i] for i in batch]), strict=True):
                    translated[index] = text
            yield from translated

    def encode(self, line: str) -> list[int]:
        """Subword ids of a raw line, EOS last; none for a line without text."""
        ids = self.subwords.encode(self.source.tokenize(self.source.normalize(line)))
        return [*ids, EOS] if ids else []

    def decode(self, ids: list[int]) -> str:
        """The detokenised text of subword ids."""
        return self.target.detokenize(self.subwords.decode(ids))

    def _search(self, sentences: list[list[int]]) -> list[str]:
        longest = max(len(ids) for ids in sentences)
        src = torch.tensor([ids + [PAD] * (longest - len(ids)) for ids in sentences], device=self.device)
        found = search(self.model, src, self.settings, self.subwords.unpadded)
        return [self.decode(hypotheses[0].ids) for hypotheses in found]


def batches(sentences: list[list[int]], tokens: int) -> Iterator[list[int]]:
    """Indices of the sentences that are not empty, of about equal length together, longest first.

    At most `tokens` positions a batch, padding included; a longer sentence stands alone.
    """
    order = sorted((i for i, ids in enumerate(sentences) if ids), key=lambda i: -len(sentences[i]))
    batch: list[int] = []
    for index in order:
        if batch and (len(batch) + 1) * len(sentences[batch[0]]) > tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def read_input(stream: Iterable[bytes]) -> Iterator[str]:
    """Lines of standard input, split at \\n alone; raises InputError at the first that is not UTF-8."""
    for number, raw in enumerate(stream, start=1):
        try:
            yield raw.decode("utf-8").removesuffix("\n")
        except UnicodeDecodeError as error:
            raise InputError(
                f"standard input, line {number}, byte {error.start + 1}: not UTF-8 ({error.reason}); convert it first"
            ) from error


def main() -> None:
    """Translate standard input, a line each."""
    parser = argparse.ArgumentParser(prog="python -m nmt.translate", description=__doc__)
    parser.add_argument("model", type=Path, metavar="MODEL_DIR", help="a model folder, such as models/average")
    parser.add_argument("--beam", type=int, help="hypotheses a sentence; the folder's own value by default")
    parser.add_argument("--alpha", type=float, help="length penalty; the folder's own value by default")
    arguments = parser.parse_args()
    try:
        translator = Translator(arguments.model)
        changes = {key: getattr(arguments, key) for key in ("beam", "alpha") if getattr(arguments, key) is not None}
        translator.settings = SearchSettings.model_validate({**translator.settings.model_dump(), **changes})
        for text in translator.translate(read_input(sys.stdin.buffer)):
            sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has had enough; Python would complain once more when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except ValueError as error:
        sys.exit(f"translate: {error}")


if __name__ == "__main__":
    main()
