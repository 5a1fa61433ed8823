"""Greedy and beam search with the length penalty of Wu et al. 2016; section 6.1.

The beam is tensor2tensor's: of the 2k best continuations, those that end join the finished hypotheses, and the k best
of the others stay in the beam, so that a finished hypothesis never displaces an unfinished one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from nmt.common.shapes import Bool, Float, Int
from nmt.errors import InputError
from nmt.ids import BOS, EOS, PAD, UNK
from nmt.inference.decoder import Decoder, mean_of
from nmt.inference.settings import SearchSettings

_CHUNK = 64  # columns per chunk in `top_of_rows`
_REMOVE_FROM = 8
"""Finished sentences are removed once they are 1/8 of the batch, because each removal copies all other rows."""


@dataclass(frozen=True)
class Hypothesis:
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
    decoders: Sequence[Decoder], src: Int[Tensor, "batch src"], settings: SearchSettings, subwords: int, nbest: int = 1
) -> list[list[Hypothesis]]:
    """Return the `nbest` best translations of each source, best first; there may be fewer.

    Several decoders are an ensemble. `src` holds subword ids, EOS last, padded with PAD. Ids from `subwords` on are
    padding rows of the vocabulary and are never produced. A beam of 1 is greedy search, which ends at the first EOS.
    Raises InputError if nbest exceeds the beam, or the model's probabilities are not finite.
    """
    settings.check_nbest(nbest)
    beam = _Beam(decoders, src, settings, subwords, nbest)
    while len(beam.results) < src.shape[0]:
        beam.step()
    return [beam.results[index] for index in range(src.shape[0])]


def not_finite_error(position: int) -> InputError:
    """Return the error for a subword, number `position` from 1, whose probabilities are NaN or all zero.

    Checking the chosen subwords is enough: a NaN anywhere in a row becomes a NaN everywhere in the softmax.
    """
    return InputError(
        f"for subword {position} of a translation the model gives no probabilities: its weights are damaged, or they "
        "overflow; use another checkpoint, or a precision of more bits"
    )


def top_of_rows(
    log_p: Float[Tensor, "*rows vocabulary"], count: int
) -> tuple[Float[Tensor, "*rows count"], Int[Tensor, "*rows count"]]:
    """Return the `count` best of each row and their columns, as `topk`; all of them if a row has fewer.

    Faster on a CPU: only the `count` chunks with the largest maxima are searched.
    """
    vocabulary = log_p.shape[-1]
    chunks, count = vocabulary // _CHUNK, min(count, vocabulary)
    if log_p.is_cuda or vocabulary % _CHUNK or chunks < 2 * count:
        return log_p.topk(count, dim=-1)
    folded = log_p.unflatten(-1, (chunks, _CHUNK))  # [*rows, chunks, _CHUNK]
    chosen = folded.amax(-1).topk(count, dim=-1, sorted=False).indices  # [*rows, count]
    inside = folded.gather(-2, chosen[..., None].expand(*chosen.shape, _CHUNK))  # [*rows, count, _CHUNK]
    best, indices = inside.flatten(-2).topk(count, dim=-1)  # [*rows, count]
    return best, chosen.gather(-1, indices // _CHUNK) * _CHUNK + indices % _CHUNK


class _Beam:
    """The search of a batch: up to k unfinished and up to k finished hypotheses of each sentence."""

    def __init__(
        self,
        decoders: Sequence[Decoder],
        src: Int[Tensor, "batch src"],
        settings: SearchSettings,
        subwords: int,
        nbest: int,
    ) -> None:
        self.settings, self.subwords, self.nbest = settings, subwords, nbest
        self.states = [decoder.start(src) for decoder in decoders]
        batch, k = src.shape[0], settings.beam
        self.sentences = list(range(batch))
        """The sentence of each row of the tensors, as an index in `src`. Some rows may have results already."""
        self.results: dict[int, list[Hypothesis]] = {}
        self.limit = (src != PAD).sum(1) - 1 + settings.max_extra
        """The most subwords of each translation, EOS not counted."""
        self.length = 0  # subwords of every unfinished hypothesis
        # The search begins with one hypothesis; from the first step on there are k.
        self.tokens = torch.full((batch, 1, 1), BOS, device=src.device)
        dtype = torch.float64 if src.device.type == "cpu" else torch.float32
        self.alive = torch.zeros(batch, 1, dtype=dtype, device=src.device)
        """Log-probabilities of unfinished hypotheses, best first."""
        self.finished = torch.full((batch, k), -math.inf, dtype=dtype, device=src.device)
        """Scores of finished hypotheses under the length penalty, best first; -inf: none."""
        self.finished_tokens = torch.full((batch, k, 1), PAD, device=src.device)

    def step(self) -> None:
        log_p, tokens, origin = self._continuations()  # [batch, 2k] each
        ends = tokens == EOS
        self.length += 1
        self._finish(log_p.masked_fill(~ends, -math.inf), origin)
        k = min(self.settings.beam, log_p.shape[1])
        self.alive, picked = log_p.masked_fill(ends, -math.inf).topk(k, dim=1)  # [batch, k]
        origin, tokens = origin.gather(1, picked), tokens.gather(1, picked)  # [batch, k]
        self.tokens = torch.cat((self._tokens_of(origin), tokens[:, :, None]), dim=2)  # [batch, k, length + 1]
        for state in self.states:
            state.select_hypotheses(origin)
        self._collect_results()

    def _tokens_of(self, origin: Int[Tensor, "batch chosen"]) -> Int[Tensor, "batch chosen length"]:
        return self.tokens.gather(1, origin[:, :, None].expand(-1, -1, self.length))

    def _allowed(self) -> Iterator[Float[Tensor, "part hypotheses vocabulary"]]:
        """Yield log-probabilities of the next subword for parts of the sentences; those not allowed have -inf.

        PAD, BOS, UNK and padding rows have -inf, and EOS at first: of a sentence that a model does not know, the empty
        translation may be the likeliest. At the length limit all but EOS have. The other probabilities are not
        rescaled.
        """
        full = self.limit <= self.length
        any_full, first = bool(full.any()), 0
        for log_p in mean_of([state.step(self.tokens[:, :, -1]) for state in self.states]):
            part = slice(first, first + log_p.shape[0])
            first = part.stop
            for token in (PAD, BOS, UNK) if self.length or any_full else (PAD, BOS, UNK, EOS):
                log_p[..., token] = -math.inf
            log_p[..., self.subwords :] = -math.inf
            if any_full:
                ends = log_p[..., EOS].clone()
                log_p.masked_fill_(full[part, None, None], -math.inf)
                log_p[..., EOS] = ends
            yield log_p

    def _continuations(
        self,
    ) -> tuple[Float[Tensor, "batch candidates"], Int[Tensor, "batch candidates"], Int[Tensor, "batch candidates"]]:
        """Return the 2k best: log-probability, last subword, and the index of the hypothesis that each continues."""
        # Greedy search ends with a best continuation that ends: the second best would go on.
        width = 2 * self.settings.beam if self.settings.beam > 1 else 1
        # The 2k best of all rows are among the 2k best of each.
        # [batch, k, width] each
        best, tokens = map(torch.cat, zip(*(top_of_rows(log_p, width) for log_p in self._allowed()), strict=True))
        log_p = (best + self.alive[:, :, None]).flatten(1)  # [batch, k * width]
        log_p, indices = log_p.topk(min(width, log_p.shape[1]), dim=1)  # [batch, width]
        return log_p, tokens.flatten(1).gather(1, indices), indices // best.shape[2]

    def _finish(self, ended: Float[Tensor, "batch candidates"], origin: Int[Tensor, "batch candidates"]) -> None:
        """Keep the k best of the finished and the newly ended hypotheses (-inf: a candidate did not end)."""
        # [batch, k + candidates], and with their subwords [batch, k + candidates, length]
        scores = torch.cat((self.finished, ended / length_penalty(self.length, self.settings.alpha)), dim=1)
        old = F.pad(self.finished_tokens, (0, self.length - self.finished_tokens.shape[2]), value=PAD)
        self.finished, picked = scores.topk(self.settings.beam, dim=1)  # [batch, k]
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
            raise not_finite_error(self.length)
        for row, index in enumerate(self.sentences):
            if done[row] and index not in self.results:
                self.results[index] = self._hypotheses(row)
        remaining = [row for row, index in enumerate(self.sentences) if index not in self.results]
        if not remaining or len(remaining) > len(self.sentences) * (1 - 1 / _REMOVE_FROM):
            return
        self.sentences = [self.sentences[row] for row in remaining]
        rows = torch.tensor(remaining, device=self.alive.device)
        for state in self.states:
            state.select_sentences(rows)
        self.limit, self.alive, self.tokens = self.limit[rows], self.alive[rows], self.tokens[rows]
        self.finished, self.finished_tokens = self.finished[rows], self.finished_tokens[rows]

    def _hypotheses(self, row: int) -> list[Hypothesis]:
        hypotheses: list[Hypothesis] = []
        scores: Sequence[float] = self.finished[row, : self.nbest].tolist()
        for score, tokens in zip(scores, self.finished_tokens[row].tolist(), strict=False):
            if score > -math.inf:
                ids = [token for token in tokens[1:] if token != PAD]
                hypotheses.append(Hypothesis(ids, score * length_penalty(len(ids) + 1, self.settings.alpha), score))
        if not hypotheses:
            raise not_finite_error(self.length)
        return hypotheses
