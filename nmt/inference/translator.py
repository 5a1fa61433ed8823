"""Lines to translations: coded, sorted by length, searched in batches by several workers, and put in order again."""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from nmt.config import InputError, SearchSettings
from nmt.inference.loading import Models, padded
from nmt.inference.options import WINDOW
from nmt.inference.sampling import SamplingSettings, sample
from nmt.inference.search import Hypothesis, length_penalty, search

WORKERS = 16
"""At most so many batches are searched at a time."""
_SENTENCE_END = re.compile(r"(\S*)[.!?\u2026][\"'\u201c\u201d\u2019\u00bb)\]]*\s+(?=[\"'\u201c\u201e\u00ab(\[]*(\w))")


@dataclass(frozen=True)
class Piece:
    """What is searched at once: a line, or a part of one."""

    ids: list[int]
    """EOS last."""
    name: tuple[int, int]
    """The line's number, from 0, and the part's."""
    text: str = ""
    """The raw line, or its part."""


@dataclass(frozen=True)
class Translation:
    """A line and its translations, best first."""

    source: str
    pieces: list[Piece]
    """None for a line without text, more than one for a line that was split."""
    hypotheses: list[Hypothesis]
    texts: list[str]
    """Of the hypotheses, detokenised; a line without text has one, the empty one."""


class Engine(ABC):
    """What searches."""

    workers: int
    """Batches that are best searched at a time."""
    threads: int
    """Of each worker."""

    @abstractmethod
    def run(self, batch: Sequence[Piece], settings: SearchSettings, nbest: int) -> list[list[Hypothesis]]:
        """The `nbest` best translations of each piece, best first; there may be fewer."""


class TorchEngine(Engine):
    """Our own search or, where asked for, sampling."""

    def __init__(self, models: Models, sampling: SamplingSettings | None = None) -> None:
        self.scorer, self.device = models.scorer(), models.device
        self.subwords, self.sampling = models.target_subwords.unpadded, sampling
        # Two workers of one thread each are faster than one of two: nothing waits for the other's half of a product.
        available = torch.get_num_threads()
        self.workers = 1 if self.device.type == "cuda" else min(available, WORKERS)
        self.threads = max(1, available // self.workers)

    def run(self, batch: Sequence[Piece], settings: SearchSettings, nbest: int) -> list[list[Hypothesis]]:
        """See Engine. Samples come in the order drawn."""
        src = padded([piece.ids for piece in batch], self.device)
        if self.sampling is None:
            return search(self.scorer, src, settings, self.subwords, nbest)
        names = [piece.name for piece in batch]
        return sample(self.scorer, src, settings, self.sampling, self.subwords, names, nbest)


class Translator:
    """A model folder, or several, ready to translate.

    Raises InputError where a folder is not complete or its parts do not fit together.
    """

    def __init__(
        self,
        folders: Path | Sequence[Path] | Models,
        device: torch.device | None = None,
        settings: SearchSettings | None = None,
        engine: Engine | None = None,
        longest: int | None = None,
        *,
        split: bool = True,
    ) -> None:
        """`longest`: the most subwords of a source; longer lines are split at sentence ends, or refused.

        Raises InputError where the beam is wider than the vocabulary.
        """
        if isinstance(folders, Models):
            self.models = folders
        else:
            self.models = Models([folders] if isinstance(folders, Path) else folders, device)
        self.description = self.models.description
        self.settings = settings or self.description.search
        rows = self.models.target_subwords.unpadded
        if self.settings.beam > rows:
            raise InputError(
                f"the search's beam is {self.settings.beam:,}, but the vocabulary has {rows:,} subwords: "
                "give a beam of at most that"
            )
        self.engine = engine or TorchEngine(self.models)
        self.longest, self.split = longest, split
        model = self.description.model
        if model.positions == "learned":
            room = max(1, model.max_positions - self.settings.max_extra - 1)
            self.longest = room if longest is None else min(longest, room)

    def translate(self, lines: Iterable[str], batch_tokens: int = 4096) -> Iterator[str]:
        """A translation for each line, in order; an empty line for an empty one."""
        for translation in self.translations(lines, batch_tokens=batch_tokens):
            yield translation.texts[0]

    def translations(
        self, lines: Iterable[str], nbest: int = 1, batch_tokens: int = 4096, window: int = WINDOW, first: int = 0
    ) -> Iterator[Translation]:
        """The same with all that is known of each; `first` is the number of the first line.

        `batch_tokens` bounds the source positions searched at a time by each worker, padding included, all beams
        counted. Raises InputError at a line that is too long.
        """
        numbered = enumerate(lines, start=first)
        wide = max(self.settings.beam, nbest)
        with _Pool(self.engine) as pool:
            waiting: deque[_Window] = deque()
            while some := list(itertools.islice(numbered, window)):
                pieces = [self.pieces(line, number) for number, line in some]
                flat = [piece for line_pieces in pieces for piece in line_pieces]
                futures = [
                    (batch, pool.submit(self.engine.run, [flat[index] for index in batch], self.settings, nbest))
                    for batch in batches([piece.ids for piece in flat], max(1, batch_tokens // wide))
                ]
                waiting.append(_Window([line for _, line in some], pieces, futures))
                # While one is waited for, the next keeps the workers busy.
                if len(waiting) > 1 or window == 1:
                    yield from self._collect(waiting.popleft())
            while waiting:
                yield from self._collect(waiting.popleft())

    def pieces(self, line: str, number: int = 0) -> list[Piece]:
        """What a line is searched as: itself, nothing where it has no text, or its sentences where it is too long.

        Raises InputError where one of these is too long. Nothing is ever cut.
        """
        ids = self.models.encode(line)
        if not ids:
            return []
        if self.longest is None or len(ids) - 1 <= self.longest:
            return [Piece(ids, (number, 0), line)]
        sentences = split_sentences(line, self.description.source) if self.split else [line]
        coded = [self.models.encode(sentence) for sentence in sentences]
        for sentence, its in zip(sentences, coded, strict=True):
            if len(its) - 1 > self.longest:
                whole = "its sentence" if len(sentences) > 1 else "the line"
                raise InputError(
                    f"line {number + 1}: {whole} `{sentence[:40]}...` has {len(its) - 1:,} subwords, and at most "
                    f"{self.longest:,} are translated at once: put its sentences on lines of their own"
                )
        return [Piece(its, (number, part), sentences[part]) for part, its in enumerate(coded) if its]

    def _collect(self, window: _Window) -> Iterator[Translation]:
        found: dict[tuple[int, int], list[Hypothesis]] = {}
        flat = [piece for pieces in window.pieces for piece in pieces]
        for batch, future in window.futures:
            for index, hypotheses in zip(batch, future.result(), strict=True):
                found[flat[index].name] = hypotheses
        for line, pieces in zip(window.lines, window.pieces, strict=True):
            yield self._translation(line, pieces, [found[piece.name] for piece in pieces])

    def _translation(self, line: str, pieces: list[Piece], found: list[list[Hypothesis]]) -> Translation:
        if not pieces:
            return Translation(line, [], [], [""])
        if len(pieces) == 1:
            return Translation(line, pieces, found[0], [self.models.decode(best.ids, line) for best in found[0]])
        # The sentences' best, side by side.
        ids = [token for hypotheses in found for token in hypotheses[0].ids]
        total = sum(hypotheses[0].log_probability for hypotheses in found)
        text = " ".join(
            self.models.decode(hypotheses[0].ids, piece.text) for piece, hypotheses in zip(pieces, found, strict=True)
        )
        length = sum(len(hypotheses[0].ids) + 1 for hypotheses in found)
        joined = Hypothesis(ids, total, total / length_penalty(length, self.settings.alpha))
        return Translation(line, pieces, [joined], [text])


@dataclass(frozen=True)
class _Window:
    lines: list[str]
    pieces: list[list[Piece]]
    futures: list[tuple[list[int], Future[list[list[Hypothesis]]]]]


class _Pool(ThreadPoolExecutor):
    """An engine's workers. torch's number of threads is theirs while they work, and the caller's own afterwards."""

    def __init__(self, engine: Engine) -> None:
        self.before = torch.get_num_threads()
        super().__init__(engine.workers, "search", torch.set_num_threads, (engine.threads,))

    def __exit__(self, *failure: object) -> None:
        # Also when the reader of a stream has had enough: what is not begun is not worth beginning.
        self.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(self.before)


def batches(sentences: Sequence[Sequence[int]], tokens: int) -> Iterator[list[int]]:
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


def split_sentences(line: str, language: str) -> list[str]:
    """The sentences of a line: parted at spaces after `.`, `!`, `?` and before what does not go on in lower case.

    Not after Moses' abbreviations. Joined by the spaces that were left out they are the line.
    """
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


def read_input(stream: Iterable[bytes], name: str = "standard input") -> Iterator[str]:
    """Lines of a byte stream, split at \\n alone; raises InputError at the first that is not UTF-8."""
    for number, raw in enumerate(stream, start=1):
        try:
            yield raw.decode("utf-8").removesuffix("\n")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{name}, line {number}, byte {error.start + 1}: not UTF-8 ({error.reason}); convert it first"
            ) from error
