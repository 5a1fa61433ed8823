"""Greedy and beam search with the length penalty of Wu et al. 2016; section 6.1.

The beam is tensor2tensor's: of the 2k best continuations, those that end go to the finished ones, and the k best
others live on, so that an ended hypothesis takes no place from a living one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nmt.config import BOS, EOS, PAD, UNK, SearchSettings
from nmt.model import Transformer
from nmt.shapes import Bool, Float, Int


@dataclass(frozen=True)
class Hypothesis:
    """One translation."""

    ids: list[int]
    """Subwords, EOS left out."""
    log_probability: float
    """Of all its subwords and EOS, in nats."""
    score: float
    """log_probability / lp(Y): what hypotheses are ranked by."""


def length_penalty(length: int, alpha: float) -> float:
    """lp(Y) = ((5 + |Y|) / 6)^alpha, Eq. 14 of Wu et al. 2016; |Y| counts EOS."""
    return float(((5 + length) / 6) ** alpha)


@torch.inference_mode()
def search(
    model: Transformer, src: Int[Tensor, "batch src"], settings: SearchSettings, subwords: int, nbest: int = 1
) -> list[list[Hypothesis]]:
    """The `nbest` best translations of each source, best first; there may be fewer.

    `src` holds subword ids, EOS last, padded with PAD. Ids from `subwords` on are padding rows of the vocabulary
    and never come out. nbest may not exceed the beam.
    """
    if not 1 <= nbest <= settings.beam:
        raise ValueError(f"nbest is {nbest}: it must lie between 1 and the beam, {settings.beam}")
    if settings.beam == 1:
        return [[hypothesis] for hypothesis in _greedy(model, src, settings, subwords)]
    beam = _Beam(model, src, settings, subwords, nbest)
    while beam.sentences:
        beam.step()
    return [beam.results[index] for index in range(src.shape[0])]


def limits(src: Int[Tensor, "batch src"], settings: SearchSettings) -> Int[Tensor, "batch"]:
    """The most subwords a translation may have, EOS left out: the source's, EOS left out, and max_extra."""
    return (src != PAD).sum(1) - 1 + settings.max_extra


def _forbid(logits: Float[Tensor, "rows vocabulary"], subwords: int) -> None:
    """Take out, in place, what is no text. What is left keeps its probability: nothing is renormalised."""
    logits[:, [PAD, BOS, UNK]] = -math.inf
    logits[:, subwords:] = -math.inf


def _greedy(
    model: Transformer, src: Int[Tensor, "batch src"], settings: SearchSettings, subwords: int
) -> list[Hypothesis]:
    """The likeliest subword at every position."""
    cache = model.start(src)
    limit = limits(src, settings).tolist()
    results: dict[int, Hypothesis] = {}
    alive = list(range(src.shape[0]))
    written: list[list[int]] = [[] for _ in alive]
    totals = [0.0] * len(alive)
    ids = torch.full((len(alive),), BOS, device=src.device)
    while alive:
        logits = model.step(ids, cache)
        normaliser = logits.logsumexp(1)
        _forbid(logits, subwords)
        ended = torch.tensor([len(written[index]) >= limit[index] for index in alive], device=src.device)
        ids = torch.where(ended, EOS, logits.argmax(1))
        gained = (logits.gather(1, ids[:, None])[:, 0] - normaliser).tolist()
        kept = []
        for row, (index, token) in enumerate(zip(alive, ids.tolist(), strict=True)):
            totals[index] += gained[row]
            if token == EOS:
                penalty = length_penalty(len(written[index]) + 1, settings.alpha)
                results[index] = Hypothesis(written[index], totals[index], totals[index] / penalty)
            else:
                written[index].append(token)
                kept.append(row)
        if len(kept) < len(alive):
            rows = torch.tensor(kept, device=src.device, dtype=torch.long)
            cache.reorder(rows, rows)
            ids, alive = ids[rows], [alive[row] for row in kept]
    return [results[index] for index in range(src.shape[0])]


class _Beam:
    """The state of a batch of searches: k living and up to k finished hypotheses of each sentence."""

    def __init__(
        self, model: Transformer, src: Int[Tensor, "batch src"], settings: SearchSettings, subwords: int, nbest: int
    ) -> None:
        self.model, self.settings, self.subwords, self.nbest = model, settings, subwords, nbest
        self.cache = model.start(src)
        batch, k = src.shape[0], settings.beam
        self.sentences: list[int] = list(range(batch))
        """Which of the batch's sentences are still searched; the tensors' rows follow it."""
        self.results: dict[int, list[Hypothesis]] = {}
        self.limit = limits(src, settings)
        self.length = 0
        """Subwords of every living hypothesis."""
        kind = self.model.embedding.table.dtype
        # All k start as the same hypothesis: only the first may go on.
        self.alive = torch.full((batch, k), -math.inf, dtype=kind, device=src.device)
        self.alive[:, 0] = 0.0
        self.tokens = torch.full((batch, k, 1), BOS, device=src.device)
        self.finished = torch.full((batch, k), -math.inf, dtype=kind, device=src.device)
        """Scores under the length penalty."""
        self.finished_tokens = torch.full((batch, k, 1), PAD, device=src.device)

    def step(self) -> None:
        """One more position for every living hypothesis."""
        batch, k = self.alive.shape
        log_p, tokens, origin = self._continuations()
        ends = tokens == EOS
        self.length += 1
        self._finish(log_p.masked_fill(~ends, -math.inf), origin)
        self.alive, picked = log_p.masked_fill(ends, -math.inf).topk(k, dim=1)
        origin, tokens = origin.gather(1, picked), tokens.gather(1, picked)
        past = self.tokens.gather(1, origin[:, :, None].expand(-1, -1, self.length))
        self.tokens = torch.cat((past, tokens[:, :, None]), dim=2)
        rows = origin + torch.arange(batch, device=origin.device)[:, None] * k
        self._leave(rows)

    def _continuations(
        self,
    ) -> tuple[Float[Tensor, "batch candidates"], Int[Tensor, "batch candidates"], Int[Tensor, "batch candidates"]]:
        """The 2k best: log-probability, last subword, and which living hypothesis each continues."""
        batch, k = self.alive.shape
        logits = self.model.step(self.tokens[:, :, -1].flatten(), self.cache)
        normaliser = logits.logsumexp(1)
        _forbid(logits, self.subwords)
        full = (self.limit <= self.length).repeat_interleave(k)
        if full.any():
            keep = logits[:, EOS].clone()
            logits.masked_fill_(full[:, None], -math.inf)
            logits[:, EOS] = keep
        # The best 2k of all rows are among the best 2k of each.
        width = min(2 * k, logits.shape[1])
        best, tokens = logits.topk(width, dim=1)
        log_p = (best - normaliser[:, None]).view(batch, k, width) + self.alive[:, :, None]
        log_p, places = log_p.flatten(1).topk(2 * k, dim=1)
        return log_p, tokens.view(batch, k * width).gather(1, places), places // width

    def _finish(self, ended: Float[Tensor, "batch candidates"], origin: Int[Tensor, "batch candidates"]) -> None:
        """Keep the k best of the finished and the newly ended (-inf where one did not end)."""
        k = self.alive.shape[1]
        scores = torch.cat((self.finished, ended / length_penalty(self.length, self.settings.alpha)), dim=1)
        new = self.tokens.gather(1, origin[:, :, None].expand(-1, -1, self.length))
        old = torch.nn.functional.pad(self.finished_tokens, (0, self.length - self.finished_tokens.shape[2]), value=PAD)
        self.finished, picked = scores.topk(k, dim=1)
        everything = torch.cat((old, new), dim=1)
        self.finished_tokens = everything.gather(1, picked[:, :, None].expand(-1, -1, self.length))

    def _done(self) -> Bool[Tensor, "batch"]:
        """Where nothing living can still matter.

        A log-probability only falls as a hypothesis grows, and is divided by at most the penalty of the longest
        allowed: so best living / lp(longest) bounds every score still to come.
        """
        longest = ((6 + self.limit.to(self.alive.dtype)) / 6) ** self.settings.alpha
        bound = self.alive[:, 0] / longest
        if self.settings.stop == "exact":
            reached = self.finished[:, self.nbest - 1]
        else:
            reached = self.finished.masked_fill(self.finished == -math.inf, math.inf).amin(1)
            reached = reached.masked_fill(self.finished[:, 0] == -math.inf, -math.inf)
        return (reached >= bound) | (bound == -math.inf)

    def _leave(self, rows: Int[Tensor, "batch k"]) -> None:
        """Take the results of sentences that are done and go on with the others; `rows` is the cache's new order."""
        done = self._done()
        if not done.any():
            self.cache.reorder(rows.flatten(), None)
            return
        flags = done.tolist()
        for row, index in enumerate(self.sentences):
            if flags[row]:
                self.results[index] = self._hypotheses(row)
        self.sentences = [index for index, flag in zip(self.sentences, flags, strict=True) if not flag]
        kept = (~done).nonzero()[:, 0]
        self.cache.reorder(rows[kept].flatten(), kept)
        self.limit, self.alive, self.tokens = self.limit[kept], self.alive[kept], self.tokens[kept]
        self.finished, self.finished_tokens = self.finished[kept], self.finished_tokens[kept]

    def _hypotheses(self, row: int) -> list[Hypothesis]:
        found: list[Hypothesis] = []
        scores: Sequence[float] = self.finished[row].tolist()
        for score, tokens in zip(scores, self.finished_tokens[row].tolist(), strict=True):
            if score > -math.inf and len(found) < self.nbest:
                ids = [token for token in tokens[1:] if token != PAD]
                found.append(Hypothesis(ids, score * length_penalty(len(ids) + 1, self.settings.alpha), score))
        return found
