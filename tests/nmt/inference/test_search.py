"""Beam search against all sequences there are, batches against single sentences, and the penalty worked by hand."""

from __future__ import annotations

import functools
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from nmt.config import BOS, EOS, PAD, UNK, InputError, ModelSettings, SearchSettings
from nmt.inference.search import Hypothesis, length_penalty, search
from nmt.model import Transformer

WORDS = 3
SUBWORDS = 4 + WORDS
"""Specials, then the words that may be said; one padding row follows."""
SOURCE = torch.tensor([[4, 5, EOS]])


def tiny(seed: int) -> Transformer:
    torch.manual_seed(seed)
    model = Transformer(
        ModelSettings(
            N=1, d_model=8, d_ff=16, h=2, d_k=4, d_v=4, P_drop=0.1, attention_dropout=0.0, relu_dropout=0.0,
            positions="sinusoidal", position_layout="interleaved", max_positions=32, projection_biases=True,
            initialisation="glorot",
        ),
        SUBWORDS + 1,
    )  # fmt: skip
    with torch.no_grad():
        model.embedding.table.mul_(4.0)
    return model.double().eval()


def how(beam: int, alpha: float, extra: int = 2, stop: str = "exact") -> SearchSettings:
    return SearchSettings.model_validate({"beam": beam, "alpha": alpha, "max_extra": extra, "stop": stop})


@torch.no_grad()
def log_probability(model: Transformer, src: Tensor, ids: list[int]) -> float:
    """Forced scoring, by the model's parallel form."""
    tgt = torch.tensor([[BOS, *ids]])
    logits = F.log_softmax(model.logits(model(src, tgt))[0], dim=1)
    return float(sum(logits[i, token] for i, token in enumerate([*ids, EOS])))


@functools.cache
def sequences(seed: int, longest: int) -> list[tuple[list[int], float]]:
    """All sequences up to a length with their log-probabilities given SOURCE."""
    model = tiny(seed)
    return [
        (list(ids), log_probability(model, SOURCE, list(ids)))
        for length in range(longest + 1)
        for ids in itertools.product(range(4, SUBWORDS), repeat=length)
    ]


def everything(seed: int, settings: SearchSettings) -> list[Hypothesis]:
    """All sequences up to the longest allowed, ranked."""
    longest = int((SOURCE != PAD).sum()) - 1 + settings.max_extra
    found = [
        Hypothesis(ids, total, total / length_penalty(len(ids) + 1, settings.alpha))
        for ids, total in sequences(seed, longest)
    ]
    return sorted(found, key=lambda hypothesis: -hypothesis.score)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("stop", ["exact", "tensor2tensor"])
@pytest.mark.parametrize("seed", range(4))
def test_a_beam_wide_enough_finds_the_best_of_all(alpha: float, stop: str, seed: int) -> None:
    settings = how(beam=WORDS**4, alpha=alpha, stop=stop)
    expected = everything(seed, settings)[0]
    found = search(tiny(seed), SOURCE, settings, SUBWORDS)[0][0]
    assert found.ids == expected.ids
    assert found.score == pytest.approx(expected.score, abs=1e-10)
    assert found.log_probability == pytest.approx(expected.log_probability, abs=1e-10)


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_nbest_are_the_best_of_all_in_order(alpha: float) -> None:
    settings = how(beam=WORDS**4, alpha=alpha)
    expected = everything(1, settings)[:6]
    found = search(tiny(1), SOURCE, settings, SUBWORDS, nbest=6)[0]
    assert [hypothesis.ids for hypothesis in found] == [hypothesis.ids for hypothesis in expected]


@given(st.integers(0, 200), st.lists(st.lists(st.integers(4, 6), min_size=1, max_size=6), min_size=2, max_size=6))
@settings(max_examples=10)
def test_a_batch_finds_what_each_sentence_finds_alone(seed: int, sentences: list[list[int]]) -> None:
    model = tiny(seed)
    longest = max(map(len, sentences)) + 1
    batch = torch.tensor([[*s, EOS] + [PAD] * (longest - len(s) - 1) for s in sentences])
    for beam in (1, 3):
        together = search(model, batch, how(beam, 0.6, extra=5), SUBWORDS, nbest=beam)
        for sentence, found in zip(sentences, together, strict=True):
            alone = search(model, torch.tensor([[*sentence, EOS]]), how(beam, 0.6, extra=5), SUBWORDS, nbest=beam)[0]
            assert [h.ids for h in found] == [h.ids for h in alone]
            for one, other in zip(found, alone, strict=True):
                assert one.score == pytest.approx(other.score, abs=1e-9)
            assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
            assert len({tuple(h.ids) for h in found}) == len(found)


@given(st.integers(0, 300))
@settings(max_examples=25)
def test_the_score_is_that_of_forced_scoring(seed: int) -> None:
    model, src = tiny(seed), torch.tensor([[4, 6, 5, EOS]])
    for beam in (1, 4):
        best = search(model, src, how(beam, 0.6, extra=4), SUBWORDS)[0][0]
        expected = log_probability(model, src, best.ids)
        assert best.log_probability == pytest.approx(expected, abs=1e-9)
        assert best.score == pytest.approx(expected / ((5 + len(best.ids) + 1) / 6) ** 0.6, abs=1e-9)
        assert len(best.ids) <= 3 + 4
        assert not {PAD, BOS, EOS, UNK, SUBWORDS} & set(best.ids)


@torch.no_grad()
def test_greedy_takes_the_likeliest_every_time() -> None:
    model, src = tiny(5), torch.tensor([[4, 6, 5, EOS]])
    ids: list[int] = []
    while len(ids) < 3 + 6:
        logits = model.logits(model(src, torch.tensor([[BOS, *ids]])))[0, -1]
        token = max([EOS, *range(4, SUBWORDS)], key=lambda i: float(logits[i]))
        if token == EOS:
            break
        ids.append(token)
    assert search(model, src, how(1, 0.6, extra=6), SUBWORDS)[0][0].ids == ids


def test_length_penalty_by_hand() -> None:
    assert length_penalty(1, 0.6) == 1.0
    assert length_penalty(7, 1.0) == 2.0
    assert length_penalty(19, 0.5) == 2.0
    assert math.isclose(length_penalty(20, 0.6), (25 / 6) ** 0.6)


def test_nbest_may_not_exceed_the_beam() -> None:
    for nbest in (0, 3):
        with pytest.raises(InputError, match=f"nbest is {nbest}: it must lie between 1 and the beam, 2"):
            search(tiny(0), torch.tensor([[4, EOS]]), how(2, 0.0), SUBWORDS, nbest=nbest)
    assert len(search(tiny(0), torch.tensor([[4, EOS]]), how(2, 0.0), SUBWORDS, nbest=2)[0]) == 2
