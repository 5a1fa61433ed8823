"""Translations drawn at random from the model's distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from nmt.common.shapes import Float, Int
from nmt.config import SearchSettings, Settings
from nmt.inference.decoder import Scorer
from nmt.inference.search import Hypothesis, generate, length_limits


class SamplingSettings(Settings):
    seed: Annotated[int, Field(ge=0)] = 1
    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    """Divides log-probabilities: below 1, likely subwords become more likely."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """Draw from this many most likely subwords; 0: from all."""


@torch.inference_mode()
def sample(
    scorer: Scorer,
    src: Int[Tensor, "batch src"],
    settings: SearchSettings,
    sampling: SamplingSettings,
    subwords: int,
    keys: Sequence[Sequence[int]],
    count: int = 1,
) -> list[list[Hypothesis]]:
    """Return `count` independent translations of each source, in the order drawn; two may be equal.

    `keys` are numbers that identify each sentence, such as its line number: its translations are a function of the
    seed and its key, whatever else is in the batch. The log-probabilities are the model's own, without temperature.
    The beam of `settings` is ignored. Raises InputError if the model's probabilities are not finite.
    """
    steps = int(length_limits(src, settings).max()) + 1
    # Numbers in (0, 1], one for every subword that may have to be drawn. A longer limit of another sentence adds steps,
    # and does not change the numbers of earlier steps.
    drawn = [1.0 - np.random.default_rng([sampling.seed, *key]).random((steps, count)) for key in keys]
    uniform = torch.from_numpy(np.stack(drawn)).to(src.device)

    def choose(log_p: Tensor, sentences: list[int], position: int) -> Tensor:
        return _draw(log_p, uniform[sentences, position], sampling)

    return generate(scorer, src, settings, subwords, count, choose)


def _draw(
    log_p: Float[Tensor, "batch count vocabulary"], uniform: Float[Tensor, "batch count"], sampling: SamplingSettings
) -> Int[Tensor, "batch count"]:
    """Return the subword at which the cumulative probability reaches the number; never an impossible one."""
    # Divided by a small temperature, the likeliest stays finite.
    tempered = (log_p.double() - log_p.amax(2, keepdim=True)) / sampling.temperature
    if 0 < sampling.top_k < tempered.shape[2]:
        least = tempered.topk(sampling.top_k, dim=2).values[:, :, -1:]
        tempered = tempered.masked_fill(tempered < least, -math.inf)
    cumulative = tempered.softmax(dim=2).cumsum(dim=2)
    return (cumulative < uniform[:, :, None] * cumulative[:, :, -1:]).sum(dim=2)
