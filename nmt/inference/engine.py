"""Searches many lines: sorted by length, in batches that several workers search, put in order again."""

import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch

from nmt.errors import InputError
from nmt.inference.decoder import Decoder
from nmt.inference.loading import LoadedModel, padded
from nmt.inference.search import Hypothesis, search
from nmt.inference.settings import SearchSettings
from nmt.portable import Arithmetic, arithmetic

WORKERS = 16  # the largest number of batches that are searched at the same time
LARGEST_SHARE = 0.55
"""The largest share of a window's source positions in one batch, so that two workers share a small file. The number of
workers decides nothing here: the last bits of a score depend on the batch, and must not depend on the machine."""
ALWAYS_ALLOWED = 256  # source positions that a batch may have however small the window is


@dataclass(frozen=True)
class Piece:
    """A line, or one sentence of a line that is too long."""

    ids: list[int]  # EOS last; none of a sentence without words, for which nothing is searched
    text: str


class Engine:
    """Searches batches of pieces; in portable arithmetic one model's results are the same on any processor."""

    def __init__(self, model: LoadedModel, kind: Arithmetic = "ordinary", others: Sequence[LoadedModel] = ()) -> None:
        """`others` have the vocabulary of `model`, and make an ensemble with it."""
        self.kind, self.device = kind, model.device
        with arithmetic(kind):
            self.decoders = [Decoder(member.transformer) for member in (model, *others)]
        self.subwords = model.target_subwords.used_rows
        # Two workers of one thread each are faster than one of two: no thread waits for another within a product.
        available = torch.get_num_threads()
        on_gpu = self.device.type == "cuda"
        self.workers = 1 if on_gpu else min(available, WORKERS)  # how many batches to search at the same time
        # 280 sentences of WMT in the beam of 4; with 4,096, 35 of them would leave a GPU idle.
        self.batch_tokens = 32_768 if on_gpu else 4096
        self.threads = max(1, available // self.workers)  # of each worker

    def run(self, batch: Sequence[Piece], settings: SearchSettings, nbest: int) -> list[list[Hypothesis]]:
        """Return the `nbest` best translations of each piece, best first; there may be fewer."""
        src = padded([piece.ids for piece in batch], self.device)
        with arithmetic(self.kind):  # Of this thread alone.
            return search(self.decoders, src, settings, self.subwords, nbest)


Line = tuple[str, list[Piece]]  # a line, and what is searched of it


def search_lines(
    engine: Engine, lines: Iterable[Line], settings: SearchSettings, nbest: int, batch_tokens: int | None, window: int
) -> Iterator[tuple[str, list[Piece], list[list[Hypothesis]]]]:
    """Yield each line with its pieces and what is found for each of them.

    `window` lines are sorted by length together. `batch_tokens` limits the source positions that each worker searches
    at a time, padding and all beams counted; by default as the engine says. An InputError that `lines` raise is raised
    after the lines before it.
    """
    if window < 1:
        raise InputError(f"window is {window}: give at least 1")
    waiting: deque[tuple[list[Line], list[tuple[list[int], Future[list[list[Hypothesis]]]]], InputError | None]]
    waiting, batch_tokens = deque(), batch_tokens or engine.batch_tokens
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(engine.workers, "search", torch.set_num_threads, (engine.threads,))
    try:
        for some, failure in windows(lines, window):
            flat = [piece for _, pieces in some for piece in pieces]
            share = math.ceil(LARGEST_SHARE * sum(len(piece.ids) for piece in flat))
            limit = max(1, min(batch_tokens // max(settings.beam, nbest), max(ALWAYS_ALLOWED, share)))
            searches = [
                (batch, pool.submit(engine.run, [flat[index] for index in batch], settings, nbest))
                for batch in batches([piece.ids for piece in flat], limit)
            ]
            waiting.append((some, searches, failure))
            # One more window is submitted before the results of the first are awaited, so that no worker idles.
            if len(waiting) > 1 or window == 1:
                yield from _in_order(*waiting.popleft())
        while waiting:
            yield from _in_order(*waiting.popleft())
    finally:
        pool.shutdown(cancel_futures=True)  # If the reader stops early, batches that have not begun are cancelled.
        torch.set_num_threads(threads)


def _in_order(
    lines: list[Line], searches: list[tuple[list[int], Future[list[list[Hypothesis]]]]], failure: InputError | None
) -> Iterator[tuple[str, list[Piece], list[list[Hypothesis]]]]:
    hypotheses = dict(pair for batch, future in searches for pair in zip(batch, future.result(), strict=True))
    at = itertools.count()
    for line, pieces in lines:
        yield line, pieces, [hypotheses.get(next(at), []) for _ in pieces]
    if failure:
        raise failure


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
