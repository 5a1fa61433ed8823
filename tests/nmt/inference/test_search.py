"""Beam search against a naive one, which recomputes everything at every step.

`naive` is written from section 6.1 of the paper, Wu et al. 2016 (Eq. 14) and the documentation of SearchSettings.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from random import Random

import pytest
import torch
from model_folders import model_settings
from refusals import check_refusal
from torch import Tensor

from nmt.ids import BOS, EOS, PAD, UNK
from nmt.inference.decoder import Decoder, DecodingState
from nmt.inference.search import search
from nmt.inference.settings import SearchSettings
from nmt.model import Transformer

SUBWORDS = 9  # specials, then five words; one padding row follows
EVERY_STOP = ("exact", "tensor2tensor")

Found = list[tuple[list[int], float, float]]  # ids, log-probability and score of hypotheses, best first


def how(beam: int, alpha: float, extra: int = 2, stop: str = "exact") -> SearchSettings:
    return SearchSettings.model_validate({"beam": beam, "alpha": alpha, "max_extra": extra, "stop": stop})


def model_of(seed: int, peak: float) -> Transformer:
    """Random weights in float64; the larger `peak`, the further apart the probabilities of the subwords."""
    torch.manual_seed(seed)
    model = Transformer(model_settings(N=1, d_model=8, d_ff=16, d_k=4, d_v=4), SUBWORDS + 1)
    with torch.no_grad():
        model.embedding.table.mul_(peak)
    return model.double().eval()


class Forward:
    """What follows a prefix, by full forward passes; several models give the mean of their probabilities."""

    def __init__(self, models: Sequence[Transformer]) -> None:
        self.models = models
        self.decoders = [Decoder(model) for model in models]
        self.known: dict[tuple[int, ...], list[float]] = {}
        """By source and prefix: a pass is slow, and many searches ask for the same."""

    @torch.no_grad()
    def __call__(self, source: list[int], prefixes: list[list[int]]) -> list[list[float]]:
        if not all((*source, *prefix) in self.known for prefix in prefixes):
            src, tgt = torch.tensor([source] * len(prefixes)), torch.tensor([[BOS, *prefix] for prefix in prefixes])
            each = [model.logits(model(src, tgt))[:, -1].softmax(1) for model in self.models]
            log_p = torch.stack(each).mean(0).log()
            self.known.update(zip(((*source, *prefix) for prefix in prefixes), log_p.tolist(), strict=True))
        return [self.known[*source, *prefix] for prefix in prefixes]


def naive(forward: Forward, source: list[int], settings: SearchSettings, nbest: int) -> Found:
    """Beam search without economies. `source` ends in EOS."""
    k, longest = settings.beam, len(source) - 1 + settings.max_extra
    words = range(UNK + 1, SUBWORDS)

    def penalty(length: int) -> float:
        return math.pow((5 + length) / 6, settings.alpha)

    def ranked(hypotheses: Found) -> Found:
        return sorted(hypotheses, key=lambda hypothesis: -hypothesis[2])

    living: list[tuple[list[int], float]] = [([], 0.0)]
    finished: Found = []
    for length in range(longest + 1):
        following = forward(source, [ids for ids, _ in living])
        candidates = [
            (total + row[token], ids, token)
            for (ids, total), row in zip(living, following, strict=True)
            for token in ([EOS] if length == longest else [EOS, *words] if length else words)
        ]
        candidates.sort(key=lambda candidate: -candidate[0])
        best = candidates[: 2 * k if k > 1 else 1]
        finished += [(ids, total, total / penalty(len(ids) + 1)) for total, ids, token in best if token == EOS]
        living = [([*ids, token], total) for total, ids, token in best if token != EOS][:k]
        if not living:
            break
        if settings.stop == "tensor2tensor" and finished:
            attainable = living[0][1] / penalty(longest + 1)
            if attainable <= ranked(finished)[:k][-1][2]:
                break
    # "exact" is what a search gives that goes on until nothing lives.
    return ranked(finished)[:nbest]


def agree(forward: Forward, sources: list[list[int]], settings: SearchSettings, nbest: int) -> list[Found]:
    """Both searches find the same for every source; returns that."""
    longest = max(map(len, sources))
    src = torch.tensor([[*source, *[PAD] * (longest - len(source))] for source in sources])
    ours = search(forward.decoders, src, settings, SUBWORDS, nbest)
    theirs = [naive(forward, source, settings, nbest) for source in sources]
    for hypotheses, expected in zip(ours, theirs, strict=True):
        assert [hypothesis.ids for hypothesis in hypotheses] == [ids for ids, _, _ in expected]
        assert [hypothesis.log_probability for hypothesis in hypotheses] == pytest.approx([p for _, p, _ in expected])
        assert [hypothesis.score for hypothesis in hypotheses] == pytest.approx([score for _, _, score in expected])
    return theirs


@cache
def example(seed: int) -> tuple[Forward, list[list[int]]]:
    """A model or, at every second seed, two, and sources of several lengths."""
    chance = Random(seed)
    models = [model_of(seed + 100 * member, chance.choice((8, 16, 32))) for member in range(2 - seed % 2)]
    return Forward(models), [[*chance.choices(range(4, SUBWORDS), k=length), EOS] for length in (1, 2, 5)]


@pytest.mark.parametrize("stop", EVERY_STOP)
@pytest.mark.parametrize("beam", [1, 2, 3, 4, 5])
def test_finds_what_the_naive_search_finds(beam: int, stop: str) -> None:
    longest = 0
    for seed in range(5):
        forward, sources = example(seed)
        chance = Random(f"{seed} {beam} {stop}")
        settings = how(beam, chance.choice((0.0, 0.6, 1.0, 2.0)), chance.randrange(5), stop)
        for source, hypotheses in zip(sources, agree(forward, sources, settings, chance.randint(1, beam)), strict=True):
            longest += any(len(ids) == len(source) - 1 + settings.max_extra for ids, _, _ in hypotheses)
    assert longest > 3, "too few of the translations are as long as they may be"


def test_sentences_that_are_done_leave_a_large_batch_undisturbed() -> None:
    forward, _ = example(2)
    chance = Random(1)
    sources = [[*chance.choices(range(4, SUBWORDS), k=length), EOS] for length in (1, 2, 3, 5) for _ in range(5)]
    for beam in (1, 3):
        agree(forward, sources, how(beam, 0.6, 3), beam)


class Fixed(Decoder, DecodingState):
    """A first subword, then the same log-probabilities after each, whatever the source; its own state."""

    def __init__(self, later: Mapping[int, float]) -> None:
        self.later = later

    def start(self, src: Tensor) -> DecodingState:
        self.following: Mapping[int, float] = {UNK + 1: 0.0}
        return self

    def step(self, ids: Tensor) -> Iterator[Tensor]:
        log_p = torch.full((*ids.shape, SUBWORDS + 1), -math.inf, dtype=torch.float64)
        for token, value in self.following.items():
            log_p[..., token] = value
        self.following = self.later
        # One part a sentence.
        return iter(log_p.split(1))

    def select_hypotheses(self, origin: Tensor) -> None: ...

    def select_sentences(self, sentences: Tensor) -> None: ...


OVERFLOWING, IMPOSSIBLE = Fixed(dict.fromkeys(range(SUBWORDS), math.nan)), Fixed({})


@pytest.mark.timeout(20)
@pytest.mark.parametrize("decoders", [[OVERFLOWING], [IMPOSSIBLE], [Fixed({EOS: 0.0}), OVERFLOWING]])
@pytest.mark.parametrize("extra", [0, 3])
def test_a_model_without_probabilities_ends_the_search_with_an_error(decoders: list[Decoder], extra: int) -> None:
    src = torch.tensor([[4, EOS], [5, EOS]])
    for beam in (1, 2, 4):
        for stop in EVERY_STOP:
            check_refusal("for subword 2 of", search, decoders, src, how(beam, 0.6, extra, stop), SUBWORDS)
