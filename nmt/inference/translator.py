"""Lines to translations: encoded, sorted by length, searched in batches by several workers, put in order again."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from nmt.errors import InputError
from nmt.inference.alignment import alignment
from nmt.inference.decoder import Decoder
from nmt.inference.loading import LoadedModel, padded
from nmt.inference.options import WINDOW
from nmt.inference.search import Hypothesis, length_penalty, search
from nmt.inference.settings import SearchSettings
from nmt.parsing.tokenizers import Attention, TreeTokenizer
from nmt.portable import Arithmetic, arithmetic
from nmt.text.subwords import SPECIALS

WORKERS = 16
"""The largest number of batches that are searched at the same time."""
LARGEST_SHARE = 0.55
"""The largest share of a window's source positions in one batch, so that two workers share a small file. The number of
workers decides nothing here: the last bits of a score depend on the batch, and must not depend on the machine."""
ALWAYS_ALLOWED = 256
"""Source positions that a batch may have however small the window is."""
_SENTENCE_END = re.compile(
    r"(?<!\S)(\S*)[.!?\u2026][\"'\u201c\u201d\u2019\u00bb)\]]*\s+(?=[\"'\u201c\u201e\u00ab(\[]*(\w))"
)


@dataclass(frozen=True)
class Piece:
    """A line, or one sentence of a line that is too long."""

    ids: list[int]
    """EOS last."""
    key: tuple[int, int]
    """The number of the line, from 0, and of the sentence in it."""
    text: str = ""


@dataclass(frozen=True)
class Translation:
    """A line and its translations, best first."""

    source: str
    pieces: list[Piece]
    """Empty for a line without text, several for a line that was split."""
    hypotheses: list[Hypothesis]
    texts: list[str]
    """The detokenised hypotheses; a line without text has one empty text."""
    repairs: list[Counter[str]]
    """What had to be repaired in each hypothesis to make a tree, by name."""


class Engine:
    """Searches batches of pieces; in portable arithmetic its results are the same on any processor."""

    def __init__(self, model: LoadedModel, kind: Arithmetic = "ordinary") -> None:
        self.kind, self.device = kind, model.device
        with arithmetic(kind):
            self.decoder = Decoder(model.transformer)
        self.subwords = model.target_subwords.used_rows
        # Two workers of one thread each are faster than one of two: no thread waits for another within a product.
        available = torch.get_num_threads()
        on_gpu = self.device.type == "cuda"
        self.workers = 1 if on_gpu else min(available, WORKERS)
        """How many batches to search at the same time."""
        # 280 sentences of WMT in the beam of 4; with 4,096, 35 of them would leave a GPU idle.
        self.batch_tokens = 32_768 if on_gpu else 4096
        self.threads = max(1, available // self.workers)
        """Of each worker."""

    def run(self, batch: Sequence[Piece], settings: SearchSettings, nbest: int) -> list[list[Hypothesis]]:
        """Return the `nbest` best translations of each piece, best first; there may be fewer."""
        src = padded([piece.ids for piece in batch], self.device)
        with arithmetic(self.kind):  # Of this thread alone.
            return search(self.decoder, src, settings, self.subwords, nbest)


class Translator:
    """Translates raw lines with a model folder."""

    def __init__(
        self,
        folder: str | Path | LoadedModel,
        device: str | torch.device | None = None,
        settings: SearchSettings | None = None,
        engine: Engine | None = None,
        longest: int | None = None,
    ) -> None:
        """Take at most `longest` subwords of a source; longer lines are split at sentence ends.

        Lines to parse are never split: several trees are no tree of the line. Raises InputError if the folder
        is incomplete, or the beam is wider than the vocabulary.
        """
        if not isinstance(folder, LoadedModel):
            folder = LoadedModel(Path(folder), None if device is None else torch.device(device))
        self.model, self.description = folder, folder.description
        self.settings = settings or self.description.search
        self.repairs: Counter[str] = Counter()
        """Of all lines so far: `trees`, `malformed trees`, and how often each repair of these was needed."""
        rows = self.model.target_subwords.used_rows
        if self.settings.beam > rows:
            raise InputError(
                f"the search's beam is {self.settings.beam:,}, but the vocabulary has {rows:,} subwords: "
                "give a beam of at most that"
            )
        self.engine = engine or Engine(self.model)
        self.joins = not isinstance(self.model.target, TreeTokenizer)
        """Whether the translations of a line's sentences, joined, are one of the line: text is, a tree is not."""
        self.alignment = lru_cache(64)(partial(alignment, self.model.transformer))
        """`alignment` of tuples; a tree's repair and --json ask for the same one."""
        self.longest = longest
        own = self.description.model
        positions = own.max_positions if own.positions == "learned" else math.inf
        self.room = positions - self.settings.max_extra - 1
        """The most subwords that the model has positions for."""
        if self.room < 1:
            raise InputError(
                f"the search's max_extra is {self.settings.max_extra:,}, but the model has {positions:,} positions: "
                f"give --max-extra at most {positions - 2:,}"
            )
        if self.room < math.inf:
            self.longest = int(min(self.room, longest or self.room))

    def translate(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the best translation of each line, in order; an empty line for a line without text.

        Raises InputError for a string in place of lines, and as `translations` does.
        """
        if isinstance(lines, str):
            raise InputError("a list of lines is needed, not one string: give [line]")
        for translation in self.translations(lines):
            yield translation.texts[0]

    def translations(
        self, lines: Iterable[str], nbest: int = 1, batch_tokens: int | None = None, window: int = WINDOW
    ) -> Iterator[Translation]:
        """Yield the translations of each line with their scores.

        `window` lines are sorted by length together. `batch_tokens` limits the source positions that each worker
        searches at a time, padding and all beams counted; by default as the engine says. Raises InputError for a line
        that is too long, after the translations of the lines before it.
        """
        numbered = ((line, self.pieces(line, number)) for number, line in enumerate(lines))
        batch_tokens = batch_tokens or self.engine.batch_tokens
        waiting: deque[tuple[list[tuple[str, list[Piece]]], _Searches, InputError | None]] = deque()
        with _Pool(self.engine) as pool:
            for some, failure in windows(numbered, window):
                flat = [piece for _, pieces in some for piece in pieces]
                share = math.ceil(LARGEST_SHARE * sum(len(piece.ids) for piece in flat))
                limit = max(1, min(batch_tokens // max(self.settings.beam, nbest), max(ALWAYS_ALLOWED, share)))
                searches: _Searches = []
                for indices in batches([piece.ids for piece in flat], limit):
                    batch = [flat[index] for index in indices]
                    searches.append((batch, pool.submit(self.engine.run, batch, self.settings, nbest)))
                waiting.append((some, searches, failure))
                # One more window is submitted before the results of the first are awaited, so that no worker idles.
                if len(waiting) > 1 or window == 1:
                    yield from self._collect(*waiting.popleft())
            while waiting:
                yield from self._collect(*waiting.popleft())

    def pieces(self, line: str, number: int = 0) -> list[Piece]:
        """Return the pieces of a line to translate: the line, none without text, its sentences if it is too long.

        Raises InputError if one of these is too long: nothing is cut off.
        """
        ids = self.model.encode(line)
        if not ids:
            return []
        if self.longest is None or len(ids) - 1 <= self.longest:
            return [Piece(ids, (number, 0), line)]
        sentences = split_sentences(line, self.description.source) if self.joins else [line]
        encoded = [self.model.encode(sentence) for sentence in sentences]
        for sentence, ids in zip(sentences, encoded, strict=True):
            if (length := len(ids) - 1) > self.longest:
                subject = "its sentence" if len(sentences) > 1 else "the line"
                rule = "translated at once: put its sentences on lines of their own"
                if not self.joins:
                    rule = f"parsed at once: give --longest {length}, or leave it out"
                raise InputError(
                    f"line {number + 1}: {subject} `{sentence[:40]}...` has {length:,} subwords, and at most "
                    f"{self.longest:,} are {rule}"
                )
        return [Piece(ids, (number, part), sentences[part]) for part, ids in enumerate(encoded) if ids]

    def _attention(self, ids: list[int], piece: Piece) -> Attention | None:
        """Return what computes the attention of a tree's symbols to the words; None where symbols are not tokens."""
        model, vocabulary = self.model, self.model.target_subwords
        # Only in a closed vocabulary is each token of the target a symbol of its own.
        if vocabulary.settings.target != "closed":
            return None
        lengths = [len(model.subwords.encode(word)) for word in model.source.tokenize(piece.text).split(" ")]

        def compute() -> NDArray[np.floating]:
            used = [row for row, token in enumerate(ids) if len(SPECIALS) <= token < vocabulary.used_rows]
            weights = self.alignment(tuple(piece.ids), tuple(ids))[used, :-1].numpy()
            return np.add.reduceat(weights, np.cumsum([0, *lengths[:-1]]), axis=1)

        return compute if sum(lengths) == len(piece.ids) - 1 else None

    def _decode(self, ids: list[int], piece: Piece) -> tuple[str, Counter[str]]:
        """Return the detokenised text of a hypothesis, and what had to be repaired in it to make a tree."""
        repairs: Counter[str] = Counter()
        tokens = self.model.target_subwords.decode(ids)
        target = self.model.target
        if not isinstance(target, TreeTokenizer):
            return target.detokenize(tokens), repairs
        text = target.detokenize(tokens, piece.text, self._attention(ids, piece), repairs)
        self.repairs += repairs + Counter({"trees": 1, "malformed trees": int(bool(repairs))})
        return text, repairs

    def _collect(
        self, lines: list[tuple[str, list[Piece]]], searches: _Searches, failure: InputError | None
    ) -> Iterator[Translation]:
        found: dict[tuple[int, int], list[Hypothesis]] = {}
        for batch, future in searches:
            found |= zip([piece.key for piece in batch], future.result(), strict=True)
        for line, pieces in lines:
            yield self._translation(line, pieces, [found[piece.key] for piece in pieces])
        if failure:
            raise failure

    def _translation(self, line: str, pieces: list[Piece], found: list[list[Hypothesis]]) -> Translation:
        if not pieces:
            return Translation(line, [], [], [""], [])
        if len(pieces) == 1:
            decoded = [self._decode(one.ids, pieces[0]) for one in found[0]]
            return Translation(line, pieces, found[0], [text for text, _ in decoded], [each for _, each in decoded])
        # The translation of a line that was split joins the best translations of its sentences.
        best = [hypotheses[0] for hypotheses in found]
        total, length = sum(one.log_probability for one in best), sum(len(one.ids) + 1 for one in best)
        ids = [token for one in best for token in one.ids]
        text = " ".join(self._decode(one.ids, piece)[0] for one, piece in zip(best, pieces, strict=True))
        joined = Hypothesis(ids, total, total / length_penalty(length, self.settings.alpha))
        return Translation(line, pieces, [joined], [text], [])


_Searches = list[tuple[list[Piece], Future[list[list[Hypothesis]]]]]
"""Batches, and what is found for each."""


class _Pool(ThreadPoolExecutor):
    """The workers of an engine. On exit, the caller has its own number of torch threads again."""

    def __init__(self, engine: Engine) -> None:
        self.before = torch.get_num_threads()
        super().__init__(engine.workers, "search", torch.set_num_threads, (engine.threads,))

    def __exit__(self, *failure: object) -> None:
        # If the reader stops early, batches that have not begun are cancelled.
        self.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(self.before)


Item = TypeVar("Item")


def windows(items: Iterable[Item], size: int) -> Iterator[tuple[list[Item], InputError | None]]:
    """Yield lists of `size` items; the last comes with the InputError that ended `items`, if one did."""
    iterator, failure = iter(items), None
    while failure is None:
        some: list[Item] = []
        try:
            some.extend(itertools.islice(iterator, size))  # Keeps the items before an error.
        except InputError as error:
            failure = error
        if some or failure:
            yield some, failure
        else:
            return


def batches(sentences: Sequence[Sequence[int]], tokens: int) -> Iterator[list[int]]:
    """Yield indices of sentences of similar length, longest first; empty sentences are left out.

    A batch has at most `tokens` positions, padding included; a longer sentence is a batch of its own.
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


def split_sentences(line: str, language: str) -> list[str]:
    """Split a line at spaces after `.`, `!`, `?`, except after Moses' abbreviations and before lower case."""
    from sacremoses.corpus import NonbreakingPrefixes

    abbreviations = {entry.split()[0] for entry in NonbreakingPrefixes().words(language)}
    sentences, start = [], 0
    for end in _SENTENCE_END.finditer(line):
        word = end[1].lstrip("\"'(\u201c\u201e\u00ab[")
        if end[2].islower() or (line[end.end(1)] == "." and (word in abbreviations or "." in word)):
            continue
        sentences.append(line[start : end.end()].strip())
        start = end.end()
    return [sentence for sentence in (*sentences, line[start:].strip()) if sentence]
