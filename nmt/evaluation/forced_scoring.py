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
from nmt.inference.search import no_probabilities
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
        """Perplexity per subword, EOS included."""
        return math.exp(-self.log_probability / self.tokens)

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
            raise no_probabilities(int(position) + 1)
        scored.append(Scored(float(inside.sum()), len(target)))
    return scored


def score_files(folders: Sequence[Path], source: Path, target: Path, batch_tokens: int = 4096) -> Iterator[Scored]:
    """Score each raw line of a parallel text, in order, with the mean of the models' probabilities.

    An empty translation is EOS alone. Raises InputError if a source has no text.
    """
    models = Models(folders)
    numbered = enumerate(parallel(source, target), start=1)
    while window := list(itertools.islice(numbered, WINDOW)):
        encoded = []
        for number, (src, tgt) in window:
            ids = models.encode(src)
            if not ids:
                raise InputError(f"line {number}: the source has no text to translate: leave it out")
            encoded.append((ids, models.encode_target(tgt) or [EOS]))
        found: dict[int, Scored] = {}
        for batch in batches([max(pair, key=len) for pair in encoded], batch_tokens):
            found |= zip(batch, score(models.members, [encoded[index] for index in batch]), strict=True)
        for index in range(len(window)):
            yield found[index]
