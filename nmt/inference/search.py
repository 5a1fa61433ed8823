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

from nmt.common.shapes import Bool, Float, Int
from nmt.config import BOS, EOS, PAD, UNK, InputError, SearchSettings
from nmt.inference.decoder import Decoder, Scorer
from nmt.model import Transformer

_CHUNK = 64
"""Columns of which first only the best is looked at."""
_STAY = 8
"""Sentences that are done leave the batch when they are one in this many: leaving copies all the others."""


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
    model: Transformer | Scorer,
    src: Int[Tensor, "batch src"],
    settings: SearchSettings,
    subwords: int,
    nbest: int = 1,
) -> list[list[Hypothesis]]:
    """The `nbest` best translations of each source, best first; there may be fewer.

    `src` holds subword ids, EOS last, padded with PAD. Ids from `subwords` on are padding rows of the vocabulary
    and never come out. Raises InputError where nbest exceeds the beam or the model gives no
    probabilities.
    """
    settings.check_nbest(nbest)
    scorer = Decoder(model) if isinstance(model, Transformer) else model
    if settings.beam == 1:
        return [[hypothesis] for hypothesis in _greedy(scorer, src, settings, subwords)]
    beam = _Beam(scorer, src, settings, subwords, nbest)
    while len(beam.results) < src.shape[0]:
        beam.step()
    return [beam.results[index] for index in range(src.shape[0])]


def limits(src: Int[Tensor, "batch src"], settings: SearchSettings) -> Int[Tensor, "batch"]:
    """The most subwords a translation may have, EOS left out: the source's, EOS left out, and max_extra."""
    return (src != PAD).sum(1) - 1 + settings.max_extra


def forbid(log_p: Float[Tensor, "*rows vocabulary"], subwords: int) -> None:
    """Take out, in place, what is no text. What is left keeps its probability: nothing is renormalised."""
    for row in (PAD, BOS, UNK):
        log_p[..., row] = -math.inf
    log_p[..., subwords:] = -math.inf


def only_end(log_p: Float[Tensor, "batch hypotheses vocabulary"], full: Bool[Tensor, "batch"]) -> None:
    """Where a sentence is as long as it may be, leave, in place, EOS alone."""
    ends = log_p[..., EOS].clone()
    log_p.masked_fill_(full[:, None, None], -math.inf)
    log_p[..., EOS] = ends


def no_probabilities(position: int) -> InputError:
    """What is raised where probabilities are NaN, or all are zero; `position` counts a translation's subwords from 1.

    Checked on what is chosen, which costs nothing: a NaN anywhere in a row becomes a NaN everywhere in the softmax.
    """
    return InputError(
        f"for subword {position} of a translation the model gives no probabilities: its weights are damaged, or they "
        "overflow; use another checkpoint, or a precision of more bits"
    )


def best_of_rows(
    log_p: Float[Tensor, "*rows vocabulary"], wanted: int
) -> tuple[Float[Tensor, "*rows wanted"], Int[Tensor, "*rows wanted"]]:
    """Like `topk`. On a CPU faster: the best n of a row lie in the n chunks of it that have the largest maxima."""
    vocabulary = log_p.shape[-1]
    chunks = vocabulary // _CHUNK
    if log_p.is_cuda or vocabulary % _CHUNK or chunks < 2 * wanted:
        return log_p.topk(wanted, dim=-1)
    # A chunk is every `chunks`-th column: their maxima are vectors' maxima.
    folded = log_p.unflatten(-1, (_CHUNK, chunks))
    chosen = folded.amax(-2).topk(wanted, dim=-1, sorted=False).indices
    inside = folded.gather(-1, chosen[..., None, :].expand(*folded.shape[:-1], wanted))
    best, places = inside.flatten(-2).topk(wanted, dim=-1)
    return best, places // wanted * chunks + chosen.gather(-1, places % wanted)


def _greedy(scorer: Scorer, src: Int[Tensor, "batch src"], settings: SearchSettings, subwords: int) -> list[Hypothesis]:
    """The likeliest subword at every position."""
    state = scorer.start(src)
    limit = limits(src, settings)
    results: dict[int, Hypothesis] = {}
    alive = list(range(src.shape[0]))
    written: list[list[int]] = [[] for _ in alive]
    totals = [0.0] * len(alive)
    ids = torch.full((len(alive), 1), BOS, device=src.device)
    length = 0
    while alive:
        log_p = state.step(ids)
        forbid(log_p, subwords)
        only_end(log_p, limit <= length)
        best, ids = log_p[:, 0].max(dim=1, keepdim=True)
        kept = []
        for row, (index, gained, token) in enumerate(zip(alive, best[:, 0].tolist(), ids[:, 0].tolist(), strict=True)):
            if not math.isfinite(gained):
                raise no_probabilities(length + 1)
            totals[index] += gained
            if token == EOS:
                penalty = length_penalty(length + 1, settings.alpha)
                results[index] = Hypothesis(written[index], totals[index], totals[index] / penalty)
            else:
                written[index].append(token)
                kept.append(row)
        length += 1
        if len(kept) < len(alive):
            rows = torch.tensor(kept, device=src.device, dtype=torch.long)
            state.keep(rows)
            ids, limit, alive = ids[rows], limit[rows], [alive[row] for row in kept]
    return [results[index] for index in range(src.shape[0])]


class _Beam:
    """The state of a batch of searches: k living and up to k finished hypotheses of each sentence."""

    def __init__(
        self, scorer: Scorer, src: Int[Tensor, "batch src"], settings: SearchSettings, subwords: int, nbest: int
    ) -> None:
        self.settings, self.subwords, self.nbest = settings, subwords, nbest
        self.state = scorer.start(src)
        batch, k = src.shape[0], settings.beam
        self.sentences: list[int] = list(range(batch))
        """Which of the batch's sentences the tensors' rows are; those that are done may stay a while."""
        self.results: dict[int, list[Hypothesis]] = {}
        self.limit = limits(src, settings)
        self.least_limit = int(self.limit.min())
        self.length = 0
        """Subwords of every living hypothesis."""
        # All begin as one hypothesis; there are k as soon as k different continuations have been seen.
        self.tokens = torch.full((batch, 1, 1), BOS, device=src.device)
        kind = torch.float64 if src.device.type == "cpu" else torch.float32
        self.alive = torch.zeros(batch, 1, dtype=kind, device=src.device)
        self.finished = torch.full((batch, k), -math.inf, dtype=kind, device=src.device)
        """Scores under the length penalty."""
        self.finished_tokens = torch.full((batch, k, 1), PAD, device=src.device)

    def step(self) -> None:
        """One more position for every living hypothesis."""
        log_p, tokens, origin = self._continuations()
        ends = tokens == EOS
        self.length += 1
        self._finish(log_p.masked_fill(~ends, -math.inf), origin)
        k = min(self.settings.beam, log_p.shape[1])
        self.alive, picked = log_p.masked_fill(ends, -math.inf).topk(k, dim=1)
        origin, tokens = origin.gather(1, picked), tokens.gather(1, picked)
        past = self.tokens.gather(1, origin[:, :, None].expand(-1, -1, self.length))
        self.tokens = torch.cat((past, tokens[:, :, None]), dim=2)
        self.state.follow(origin)
        self._leave()

    def _continuations(
        self,
    ) -> tuple[Float[Tensor, "batch candidates"], Int[Tensor, "batch candidates"], Int[Tensor, "batch candidates"]]:
        """The 2k best: log-probability, last subword, and which living hypothesis each continues."""
        batch = self.alive.shape[0]
        following = self.state.step(self.tokens[:, :, -1])
        forbid(following, self.subwords)
        if self.length >= self.least_limit:
            only_end(following, self.limit <= self.length)
        # The best 2k of all rows are among the best 2k of each.
        width = min(2 * self.settings.beam, following.shape[2])
        best, tokens = best_of_rows(following, width)
        log_p = (best + self.alive[:, :, None]).flatten(1)
        log_p, places = log_p.topk(min(2 * self.settings.beam, log_p.shape[1]), dim=1)
        return log_p, tokens.view(batch, -1).gather(1, places), places // width

    def _finish(self, ended: Float[Tensor, "batch candidates"], origin: Int[Tensor, "batch candidates"]) -> None:
        """Keep the k best of the finished and the newly ended (-inf where one did not end)."""
        scores = torch.cat((self.finished, ended / length_penalty(self.length, self.settings.alpha)), dim=1)
        new = self.tokens.gather(1, origin[:, :, None].expand(-1, -1, self.length))
        old = torch.nn.functional.pad(self.finished_tokens, (0, self.length - self.finished_tokens.shape[2]), value=PAD)
        self.finished, picked = scores.topk(self.settings.beam, dim=1)
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

    def _leave(self) -> None:
        """Take the results of sentences that are done; these leave the batch once they are many."""
        # `topk` takes NaN for the largest number.
        broken = self.alive[:, 0].isnan() | self.finished[:, 0].isnan()
        done, broken_rows = torch.stack((self._done(), broken)).tolist()
        if any(broken_rows):
            raise no_probabilities(self.length)
        for row, index in enumerate(self.sentences):
            if done[row] and index not in self.results:
                self.results[index] = self._hypotheses(row)
        going = [row for row, index in enumerate(self.sentences) if index not in self.results]
        if not going or len(going) > len(self.sentences) * (1 - 1 / _STAY):
            return
        self.sentences = [self.sentences[row] for row in going]
        kept = torch.tensor(going, device=self.alive.device)
        self.state.keep(kept)
        self.limit, self.alive, self.tokens = self.limit[kept], self.alive[kept], self.tokens[kept]
        self.least_limit = int(self.limit.min())
        self.finished, self.finished_tokens = self.finished[kept], self.finished_tokens[kept]

    def _hypotheses(self, row: int) -> list[Hypothesis]:
        found: list[Hypothesis] = []
        scores: Sequence[float] = self.finished[row].tolist()
        for score, tokens in zip(scores, self.finished_tokens[row].tolist(), strict=True):
            if score > -math.inf and len(found) < self.nbest:
                ids = [token for token in tokens[1:] if token != PAD]
                found.append(Hypothesis(ids, score * length_penalty(len(ids) + 1, self.settings.alpha), score))
        if not found:
            raise no_probabilities(self.length)
        return found
