"""Greedy and beam search with the length penalty of Wu et al. 2016; section 6.1.

The beam is tensor2tensor's: of the 2k best continuations, those that end join the finished hypotheses, and the k best
of the others stay in the beam, so that a finished hypothesis never displaces an unfinished one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.common.shapes import Bool, Float, Int
from nmt.config import BOS, EOS, PAD, UNK, InputError, SearchSettings
from nmt.inference.decoder import Decoder, Scorer
from nmt.model import Transformer

_CHUNK = 64
"""Columns whose maximum is computed before any of them is compared alone."""
_REMOVE_FROM = 8
"""Finished sentences leave the batch when they are at least one in this many: removing rows copies all others."""


@dataclass(frozen=True)
class Hypothesis:
    """A translation."""

    ids: list[int]
    """Subwords without EOS."""
    log_probability: float
    """Of all its subwords and EOS, in nats."""
    score: float
    """log_probability / lp(Y), by which hypotheses are ranked."""


def length_penalty(length: int, alpha: float) -> float:
    """Return lp(Y) = ((5 + |Y|) / 6)^alpha, Eq. 14 of Wu et al. 2016; |Y| counts EOS."""
    return float(((5 + length) / 6) ** alpha)


@torch.inference_mode()
def search(
    model: Transformer | Scorer,
    src: Int[Tensor, "batch src"],
    settings: SearchSettings,
    subwords: int,
    nbest: int = 1,
) -> list[list[Hypothesis]]:
    """Return the `nbest` best translations of each source, best first; there may be fewer.

    `src` holds subword ids, EOS last, padded with PAD. Ids from `subwords` on are padding rows of the vocabulary and
    are never produced. A beam of 1 is greedy search, which ends at the first EOS. `_Beam` would go on from there with
    the second best subword and could return that translation; it takes the same time.
    Raises InputError if nbest exceeds the beam, or the model's probabilities are not finite.
    """
    settings.check_nbest(nbest)
    scorer = Decoder(model) if isinstance(model, Transformer) else model
    if settings.beam == 1:
        return generate(scorer, src, settings, subwords, 1, lambda log_p, sentences, position: log_p.argmax(dim=2))
    beam = _Beam(scorer, src, settings, subwords, nbest)
    while len(beam.results) < src.shape[0]:
        beam.step()
    return [beam.results[index] for index in range(src.shape[0])]


def generate(
    scorer: Scorer,
    src: Int[Tensor, "batch src"],
    settings: SearchSettings,
    subwords: int,
    count: int,
    choose: Callable[[Tensor, list[int], int], Tensor],
) -> list[list[Hypothesis]]:
    """Return `count` independent translations of each source, one subword after the other.

    `choose` returns the next subwords, [batch, count], given their log-probabilities, [batch, count, vocabulary], the
    indices in `src` of the sentences in this batch, and the position in the translation, from 0.
    Raises InputError if the model's probabilities are not finite.
    """
    state, limit = scorer.start(src), limits(src, settings)
    sentences = list(range(src.shape[0]))
    written: list[list[list[int]]] = [[[] for _ in range(count)] for _ in sentences]
    totals = [[0.0] * count for _ in sentences]
    ids = torch.full((len(sentences), 1), BOS, device=src.device)
    position = 0
    while sentences:
        log_p = state.step(ids)
        forbid(log_p, subwords)
        only_end(log_p, limit <= position)
        if position == 0 and count > 1:
            state.follow(ids.new_zeros(len(sentences), count))
            log_p = log_p.expand(-1, count, -1)
        ids = choose(log_p, sentences, position)
        gains = log_p.gather(2, ids[:, :, None])[:, :, 0].tolist()
        position += 1
        remaining = []
        for row, (sentence, tokens) in enumerate(zip(sentences, ids.tolist(), strict=True)):
            for copy, (own, token, gain) in enumerate(zip(written[sentence], tokens, gains[row], strict=True)):
                if own[-1:] != [EOS]:
                    if not math.isfinite(gain):
                        raise no_probabilities(position)
                    own.append(token)
                    totals[sentence][copy] += gain
            if any(own[-1] != EOS for own in written[sentence]):
                remaining.append(row)
        if len(remaining) < len(sentences):
            rows = torch.tensor(remaining, dtype=torch.long, device=src.device)
            state.keep(rows)
            ids, limit, sentences = ids[rows], limit[rows], [sentences[row] for row in remaining]
    return [
        [
            Hypothesis(own[:-1], total, total / length_penalty(len(own), settings.alpha))
            for own, total in zip(written[sentence], totals[sentence], strict=True)
        ]
        for sentence in range(src.shape[0])
    ]


def limits(src: Int[Tensor, "batch src"], settings: SearchSettings) -> Int[Tensor, "batch"]:
    """Return the most subwords that each translation may have, EOS not counted: the source's and max_extra."""
    return (src != PAD).sum(1) - 1 + settings.max_extra


def forbid(log_p: Float[Tensor, "*rows vocabulary"], subwords: int) -> None:
    """Make the specials but EOS, and the padding rows, impossible, in place. The others are not renormalised."""
    for row in (PAD, BOS, UNK):
        log_p[..., row] = -math.inf
    log_p[..., subwords:] = -math.inf


def only_end(log_p: Float[Tensor, "batch hypotheses vocabulary"], full: Bool[Tensor, "batch"]) -> None:
    """Make everything but EOS impossible, in place, for sentences whose translations have reached their limit."""
    ends = log_p[..., EOS].clone()
    log_p.masked_fill_(full[:, None, None], -math.inf)
    log_p[..., EOS] = ends


def no_probabilities(position: int) -> InputError:
    """Return the error for probabilities that are NaN or all zero at a subword of a translation, counted from 1.

    Checking the chosen subwords is enough: a NaN anywhere in a row becomes a NaN everywhere in the softmax.
    """
    return InputError(
        f"for subword {position} of a translation the model gives no probabilities: its weights are damaged, or they "
        "overflow; use another checkpoint, or a precision of more bits"
    )


def best_of_rows(
    log_p: Float[Tensor, "*rows vocabulary"], count: int
) -> tuple[Float[Tensor, "*rows count"], Int[Tensor, "*rows count"]]:
    """Do what `topk` does, faster on a CPU: the best n of a row are in the n chunks with the largest maxima."""
    vocabulary = log_p.shape[-1]
    chunks = vocabulary // _CHUNK
    if log_p.is_cuda or vocabulary % _CHUNK or chunks < 2 * count:
        return log_p.topk(count, dim=-1)
    # A chunk is every `chunks`-th column, so that the maxima of all chunks are computed as vectors.
    folded = log_p.unflatten(-1, (_CHUNK, chunks))
    chosen = folded.amax(-2).topk(count, dim=-1, sorted=False).indices
    inside = folded.gather(-1, chosen[..., None, :].expand(*folded.shape[:-1], count))
    best, indices = inside.flatten(-2).topk(count, dim=-1)
    return best, indices // count * chunks + chosen.gather(-1, indices % count)


class _Beam:
    """The search of a batch: up to k unfinished and up to k finished hypotheses of each sentence."""

    def __init__(
        self, scorer: Scorer, src: Int[Tensor, "batch src"], settings: SearchSettings, subwords: int, nbest: int
    ) -> None:
        self.settings, self.subwords, self.nbest = settings, subwords, nbest
        self.state = scorer.start(src)
        batch, k = src.shape[0], settings.beam
        self.sentences = list(range(batch))
        """The sentence of each row of the tensors, as an index in `src`. Some rows may have results already."""
        self.results: dict[int, list[Hypothesis]] = {}
        self.limit = limits(src, settings)
        self.least_limit = int(self.limit.min())
        self.length = 0
        """Subwords of every unfinished hypothesis."""
        # The search begins with one hypothesis; from the first step on there are k.
        self.tokens = torch.full((batch, 1, 1), BOS, device=src.device)
        dtype = torch.float64 if src.device.type == "cpu" else torch.float32
        self.alive = torch.zeros(batch, 1, dtype=dtype, device=src.device)
        """Log-probabilities of unfinished hypotheses, best first."""
        self.finished = torch.full((batch, k), -math.inf, dtype=dtype, device=src.device)
        """Scores of finished hypotheses under the length penalty, best first; -inf: none."""
        self.finished_tokens = torch.full((batch, k, 1), PAD, device=src.device)

    def step(self) -> None:
        """Extend every unfinished hypothesis by a position."""
        log_p, tokens, origin = self._continuations()
        ends = tokens == EOS
        self.length += 1
        self._finish(log_p.masked_fill(~ends, -math.inf), origin)
        k = min(self.settings.beam, log_p.shape[1])
        self.alive, picked = log_p.masked_fill(ends, -math.inf).topk(k, dim=1)
        origin, tokens = origin.gather(1, picked), tokens.gather(1, picked)
        self.tokens = torch.cat((self._tokens_of(origin), tokens[:, :, None]), dim=2)
        self.state.follow(origin)
        self._collect_results()

    def _tokens_of(self, origin: Int[Tensor, "batch chosen"]) -> Int[Tensor, "batch chosen length"]:
        return self.tokens.gather(1, origin[:, :, None].expand(-1, -1, self.length))

    def _continuations(
        self,
    ) -> tuple[Float[Tensor, "batch candidates"], Int[Tensor, "batch candidates"], Int[Tensor, "batch candidates"]]:
        """Return the 2k best: log-probability, last subword, and the index of the hypothesis that each continues."""
        following = self.state.step(self.tokens[:, :, -1])
        forbid(following, self.subwords)
        if self.length >= self.least_limit:
            only_end(following, self.limit <= self.length)
        # The 2k best of all rows are among the 2k best of each.
        width = min(2 * self.settings.beam, following.shape[2])
        best, tokens = best_of_rows(following, width)
        log_p = (best + self.alive[:, :, None]).flatten(1)
        log_p, indices = log_p.topk(min(2 * self.settings.beam, log_p.shape[1]), dim=1)
        return log_p, tokens.flatten(1).gather(1, indices), indices // width

    def _finish(self, ended: Float[Tensor, "batch candidates"], origin: Int[Tensor, "batch candidates"]) -> None:
        """Keep the k best of the finished and the newly ended hypotheses (-inf: a candidate did not end)."""
        scores = torch.cat((self.finished, ended / length_penalty(self.length, self.settings.alpha)), dim=1)
        old = F.pad(self.finished_tokens, (0, self.length - self.finished_tokens.shape[2]), value=PAD)
        self.finished, picked = scores.topk(self.settings.beam, dim=1)
        both = torch.cat((old, self._tokens_of(origin)), dim=1)
        self.finished_tokens = both.gather(1, picked[:, :, None].expand(-1, -1, self.length))

    def _done(self) -> Bool[Tensor, "batch"]:
        """Return for which sentences no unfinished hypothesis can change the result.

        A log-probability only falls as a hypothesis grows, and the largest divisor is the penalty of the longest
        allowed translation: so the best log-probability / lp(longest) bounds every score still to come.
        """
        longest = ((6 + self.limit.to(self.alive.dtype)) / 6) ** self.settings.alpha
        bound = self.alive[:, 0] / longest
        if self.settings.stop == "exact":
            reached = self.finished[:, self.nbest - 1]
        else:
            reached = self.finished.masked_fill(self.finished == -math.inf, math.inf).amin(1)
            reached = reached.masked_fill(self.finished[:, 0] == -math.inf, -math.inf)
        return (reached >= bound) | (bound == -math.inf)

    def _collect_results(self) -> None:
        """Store the results of sentences that are done; remove these from the batch once they are many."""
        # `topk` ranks NaN above every number.
        broken = self.alive[:, 0].isnan() | self.finished[:, 0].isnan()
        done, broken_rows = torch.stack((self._done(), broken)).tolist()
        if any(broken_rows):
            raise no_probabilities(self.length)
        for row, index in enumerate(self.sentences):
            if done[row] and index not in self.results:
                self.results[index] = self._hypotheses(row)
        remaining = [row for row, index in enumerate(self.sentences) if index not in self.results]
        if not remaining or len(remaining) > len(self.sentences) * (1 - 1 / _REMOVE_FROM):
            return
        self.sentences = [self.sentences[row] for row in remaining]
        rows = torch.tensor(remaining, device=self.alive.device)
        self.state.keep(rows)
        self.limit, self.alive, self.tokens = self.limit[rows], self.alive[rows], self.tokens[rows]
        self.least_limit = int(self.limit.min())
        self.finished, self.finished_tokens = self.finished[rows], self.finished_tokens[rows]

    def _hypotheses(self, row: int) -> list[Hypothesis]:
        found: list[Hypothesis] = []
        scores: Sequence[float] = self.finished[row, : self.nbest].tolist()
        for score, tokens in zip(scores, self.finished_tokens[row].tolist(), strict=False):
            if score > -math.inf:
                ids = [token for token in tokens[1:] if token != PAD]
                found.append(Hypothesis(ids, score * length_penalty(len(ids) + 1, self.settings.alpha), score))
        if not found:
            raise no_probabilities(self.length)
        return found
