"""Forced scoring: the log-probability and perplexity of given translations under a model; `wmt score`.

The search reports the same log-probability for its own translations if their text has the same subwords.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from nmt.errors import InputError
from nmt.ids import BOS, EOS
from nmt.inference.engine import batches, windows
from nmt.inference.loading import LoadedModel, padded
from nmt.inference.options import WINDOW
from nmt.inference.search import not_finite_error
from nmt.model import Transformer

LONGEST = 8192  # subwords that a side may have: attention takes memory with their square, 256 MB a head for so many
_ROWS = 256  # positions whose logits are in memory together: 38 MB for the paper's vocabulary


@dataclass(frozen=True)
class Scored:
    log_probability: float
    """Of all its subwords and EOS, in nats."""
    tokens: int
    """Subwords, EOS included."""

    @property
    def perplexity(self) -> float:
        """Perplexity per subword, EOS included; at most e^700, which a float can hold."""
        return math.exp(min(-self.log_probability / max(1, self.tokens), 700.0))

    def __add__(self, other: Scored) -> Scored:
        return Scored(self.log_probability + other.log_probability, self.tokens + other.tokens)


@torch.inference_mode()
def score(model: Transformer, pairs: Sequence[tuple[list[int], list[int]]]) -> list[Scored]:
    """Score pairs of ids, EOS last, as one batch; raise InputError if the probabilities are not finite."""
    device = model.embedding.table.device
    src = padded([source for source, _ in pairs], device)
    tgt_in = padded([[BOS, *target[:-1]] for _, target in pairs], device)
    targets = padded([target for _, target in pairs], device)
    blocks = zip(model(src, tgt_in).flatten(0, 1).split(_ROWS), targets.flatten().split(_ROWS), strict=True)
    precise = torch.promote_types(model.embedding.table.dtype, torch.float32)
    parts = [
        -F.cross_entropy(model.logits(states).to(precise), labels, reduction="none").double()
        for states, labels in blocks
    ]
    log_p = torch.cat(parts).view(targets.shape)
    scored = []
    for row, (_, target) in zip(log_p, pairs, strict=True):
        inside = row[: len(target)]
        for position in (~inside.isfinite()).nonzero()[:1]:
            raise not_finite_error(int(position) + 1)
        scored.append(Scored(float(inside.sum()), len(target)))
    return scored


def score_lines(model: LoadedModel, pairs: Iterable[tuple[str, str]], batch_tokens: int = 4096) -> Iterator[Scored]:
    """Score each pair of a raw source and its raw translation, in order: log-probabilities in nats.

    A batch has about `batch_tokens` subwords of the longer side, padding included. An empty translation is scored
    as EOS alone; where both sides are empty, nothing is. Raises InputError, after the scores of the lines before, if a
    source without text has a translation, a target is no tree, or a side has more subwords than LONGEST or than learned
    positions.
    """
    settings = model.description.model
    longest = min(settings.max_positions, LONGEST) if settings.positions == "learned" else LONGEST

    def encoded() -> Iterator[tuple[list[int], list[int]]]:
        for number, (src, tgt) in enumerate(pairs, start=1):
            ids, target = model.encode(src), model.encode_target(tgt, number)
            if target and not ids:
                raise InputError(f"line {number}: the source has no text to translate: leave it out")
            if (length := max(len(ids), len(target))) > longest:
                raise InputError(f"line {number}: a side has {length:,} subwords, and at most {longest:,} are scored")
            yield ids, target or ([EOS] if ids else [])

    for window, failure in windows(encoded(), WINDOW):
        scored: dict[int, Scored] = {}
        for batch in batches([max(pair, key=len) for pair in window], batch_tokens):
            scored |= zip(batch, score(model.transformer, [window[index] for index in batch]), strict=True)
        for index in range(len(window)):
            yield scored.get(index, Scored(0.0, 0))
        if failure:
            raise failure
