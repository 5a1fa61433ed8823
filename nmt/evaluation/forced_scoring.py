"""Forced scoring: the log-probability and perplexity of given translations under a model; `wmt score`.

The search reports the same log-probability for its own translations if their text has the same subwords.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from nmt.config import BOS, EOS, InputError
from nmt.inference.loading import Models, padded
from nmt.inference.search import not_finite_error
from nmt.inference.translator import batches
from nmt.model import Transformer
from nmt.text.parallel_text import parallel

WINDOW = 2048
"""Pairs sorted by length together."""


@dataclass(frozen=True)
class Scored:
    """The score of a translation."""

    log_probability: float
    """Of all its subwords and EOS, in nats."""
    tokens: int
    """Subwords, EOS included."""

    @property
    def perplexity(self) -> float:
        """Perplexity per subword, EOS included; at most e^700, which a float can hold."""
        return math.exp(min(-self.log_probability / self.tokens, 700.0))

    def __add__(self, other: Scored) -> Scored:
        return Scored(self.log_probability + other.log_probability, self.tokens + other.tokens)


@torch.inference_mode()
def score(members: Sequence[Transformer], pairs: Sequence[tuple[list[int], list[int]]]) -> list[Scored]:
    """Score pairs of ids, EOS last, as one batch, with the mean of the models' probabilities.

    Raises InputError if the probabilities are not finite.
    """
    device = members[0].embedding.table.device
    src = padded([source for source, _ in pairs], device)
    tgt_in = padded([[BOS, *target[:-1]] for _, target in pairs], device)
    targets = padded([target for _, target in pairs], device)
    every = []
    for model in members:
        logits = model.logits(model(src, tgt_in))
        precise = logits if logits.dtype == torch.float64 else logits.float()
        every.append(precise.log_softmax(2).gather(2, targets[:, :, None])[:, :, 0].double())
    log_p = torch.stack(every).logsumexp(0) - math.log(len(every))
    scored = []
    for row, (_, target) in zip(log_p, pairs, strict=True):
        inside = row[: len(target)]
        for position in (~inside.isfinite()).nonzero()[:1]:
            raise not_finite_error(int(position) + 1)
        scored.append(Scored(float(inside.sum()), len(target)))
    return scored


def _encode(models: Models, number: int, src: str, tgt: str) -> tuple[list[int], list[int]]:
    """Return the ids of a pair of raw lines, EOS last; raise InputError if the source has no text."""
    ids = models.encode(src)
    if not ids:
        raise InputError(f"line {number}: the source has no text to translate: leave it out")
    return ids, models.encode_target(tgt) or [EOS]


def score_files(folders: Sequence[Path], source: Path, target: Path, batch_tokens: int = 4096) -> Iterator[Scored]:
    """Score each raw line of a parallel text, in order, with the mean of the models' probabilities.

    An empty translation is EOS alone. Raises InputError if a source has no text, after the scores of the lines before.
    """
    models = Models(folders)
    numbered = enumerate(parallel(source, target), start=1)
    failure: InputError | None = None
    while not failure:
        encoded = []
        try:
            for number, (src, tgt) in itertools.islice(numbered, WINDOW):
                encoded.append(_encode(models, number, src, tgt))
        except InputError as error:
            failure = error
        if not encoded:
            break
        found: dict[int, Scored] = {}
        for batch in batches([max(pair, key=len) for pair in encoded], batch_tokens):
            found |= zip(batch, score(models.members, [encoded[index] for index in batch]), strict=True)
        for index in range(len(encoded)):
            yield found[index]
    if failure:
        raise failure
