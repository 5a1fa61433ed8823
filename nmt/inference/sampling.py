"""Translations drawn at random from the model's distribution: apart from search, which looks for the likeliest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from nmt.common.shapes import Float, Int
from nmt.config import BOS, EOS, SearchSettings, Settings
from nmt.inference.decoder import Scorer
from nmt.inference.search import Hypothesis, forbid, length_penalty, limits, no_probabilities, only_end


class SamplingSettings(Settings):
    """How to draw."""

    seed: Annotated[int, Field(ge=0)]
    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    """Log-probabilities are divided by it: below 1 the likely become likelier."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """Draw among this many likeliest subwords; 0: among all."""


@torch.inference_mode()
def sample(
    scorer: Scorer,
    src: Int[Tensor, "batch src"],
    settings: SearchSettings,
    sampling: SamplingSettings,
    subwords: int,
    names: Sequence[Sequence[int]],
    count: int = 1,
) -> list[list[Hypothesis]]:
    """`count` independent translations of each source, in the order drawn; two may be equal.

    `names` tells the sentences apart: what is drawn for one follows from the seed and its name (numbers, such as the
    line's), whatever stands beside it. The log-probabilities are the model's own. Of `settings` the beam is ignored.
    Raises InputError where the model gives no probabilities.
    """
    limit = limits(src, settings)
    state = scorer.start(src)
    uniform = _uniform(sampling.seed, names, limit, count)
    going = list(range(src.shape[0]))
    written: list[list[list[int]]] = [[[] for _ in range(count)] for _ in going]
    totals = torch.zeros(len(going), count, dtype=torch.float64)
    ids = torch.full((len(going), 1), BOS, device=src.device)
    ended = torch.zeros(len(going), count, dtype=torch.bool)
    length = 0
    while going:
        log_p = state.step(ids)
        forbid(log_p, subwords)
        only_end(log_p, limit[going] <= length)
        if length == 0:
            everyone = torch.zeros(len(going), count, dtype=torch.long, device=src.device)
            state.follow(everyone)
            log_p = log_p.expand(-1, count, -1)
        ids = _draw(log_p, uniform[going, length], sampling)
        gained = log_p.gather(2, ids[:, :, None])[:, :, 0].cpu().double()
        if not gained.isfinite().all():
            raise no_probabilities(length + 1)
        totals[going] += gained.masked_fill(ended[going], 0.0)
        for row, drawn in zip(going, ids.tolist(), strict=True):
            for place, token in enumerate(drawn):
                if token == EOS:
                    ended[row, place] = True
                elif not ended[row, place]:
                    written[row][place].append(token)
        length += 1
        kept = [place for place, row in enumerate(going) if not ended[row].all()]
        if len(kept) < len(going):
            rows = torch.tensor(kept, dtype=torch.long, device=src.device)
            state.keep(rows)
            ids, going = ids[rows], [going[place] for place in kept]
    return [
        [
            Hypothesis(found, total, total / length_penalty(len(found) + 1, settings.alpha))
            for found, total in zip(sentence, totals[row].tolist(), strict=True)
        ]
        for row, sentence in enumerate(written)
    ]


def _uniform(
    seed: int, names: Sequence[Sequence[int]], limit: Int[Tensor, "batch"], count: int
) -> Float[Tensor, "batch steps count"]:
    """Numbers in (0, 1], one for every subword that may have to be drawn."""
    steps = int(limit.max()) + 1
    # Numbers of later steps do not change those of earlier ones.
    drawn = [1.0 - np.random.default_rng([seed, *name]).random((steps, count)) for name in names]
    return torch.from_numpy(np.stack(drawn)).to(limit.device)


def _draw(
    log_p: Float[Tensor, "batch count vocabulary"], uniform: Float[Tensor, "batch count"], sampling: SamplingSettings
) -> Int[Tensor, "batch count"]:
    """The subword at which the cumulative probability reaches the uniform number; never an impossible one."""
    tempered = log_p.double() / sampling.temperature
    if 0 < sampling.top_k < tempered.shape[2]:
        least = tempered.topk(sampling.top_k, dim=2).values[:, :, -1:]
        tempered = tempered.masked_fill(tempered < least, -math.inf)
    cumulative = tempered.softmax(dim=2).cumsum(dim=2)
    return (cumulative < uniform[:, :, None] * cumulative[:, :, -1:]).sum(dim=2)
