"""Decoding step by step against the model's parallel form; ensembles; sampling."""

from __future__ import annotations

import math
from collections import Counter
from itertools import accumulate

import numpy as np
import pytest
import torch
from model_folders import model_settings
from pydantic import ValidationError
from torch import Tensor

from nmt.config import BOS, EOS, PAD, SearchSettings
from nmt.evaluation import forced_scoring
from nmt.evaluation.forced_scoring import score
from nmt.inference.decoder import Decoder, DecodingState, Ensemble
from nmt.inference.sampling import SamplingSettings, _draw, sample
from nmt.inference.search import search, top_of_rows
from nmt.model import Transformer

ROWS = 16
HOW = SearchSettings(beam=4, alpha=0.6, max_extra=6, stop="exact")
SRC = torch.tensor([[5, 6, 7, EOS], [8, EOS, PAD, PAD]])


def model_of(seed: int = 0, **changes: object) -> Transformer:
    torch.manual_seed(seed)
    model = Transformer(model_settings(max_positions=80, **changes), ROWS)
    with torch.no_grad():
        model.embedding.table.mul_(3.0)
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 and "position" not in name:
                # Biases start at 0 and gains at 1, the same in every layer: one could stand for another unnoticed.
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model.double().eval()


def step(state: DecodingState, ids: Tensor) -> Tensor:
    """The log-probabilities of all sentences."""
    return torch.cat(list(state.step(ids)))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"d_k": 3, "d_v": 5},
        {"projection_biases": False},
        {"positions": "learned"},
        {"sharing": "output"},
        {"sharing": "none", "positions": "learned"},
    ],
)
def test_step_by_step_equals_all_positions_at_once(changes: dict[str, object]) -> None:
    model = model_of(**changes)
    # More than there is room for at first.
    tgt = torch.randint(4, ROWS, (2, 70))
    tgt[:, 0] = BOS
    expected = model.logits(model(SRC, tgt)).log_softmax(2)
    state = Decoder(model).start(SRC)
    for position in range(70):
        assert torch.allclose(step(state, tgt[:, position : position + 1])[:, 0], expected[:, position], atol=1e-10)


def test_hypotheses_share_what_came_before_and_nothing_else() -> None:
    model = model_of()
    state = Decoder(model).start(SRC)
    state.step(torch.full((2, 1), BOS))
    state.select_hypotheses(torch.zeros(2, 3, dtype=torch.long))
    state.step(torch.tensor([[4, 5, 6], [7, 8, 9]]))
    state.select_hypotheses(torch.tensor([[2, 0], [1, 1]]))
    state.step(torch.tensor([[10, 11], [12, 13]]))
    state.select_sentences(torch.tensor([1]))
    state.select_hypotheses(torch.tensor([[1, 0]]))
    found = step(state, torch.tensor([[14, 15]]))
    for place, ids in enumerate(([BOS, 8, 13, 14], [BOS, 8, 12, 15])):
        expected = model.logits(model(SRC[1:, :2], torch.tensor([ids]))).log_softmax(2)[0, -1]
        assert torch.allclose(found[0, place], expected, atol=1e-10)


def test_the_best_of_rows_are_those_of_topk() -> None:
    torch.manual_seed(1)
    for columns in (64 * 20, 64 * 20 + 1, 64 * 7, 9):
        log_p = torch.randn(5, 3, columns)
        best, places = top_of_rows(log_p, 8)
        expected = log_p.topk(8, dim=-1)
        assert torch.equal(best, expected.values)
        # Equal values may stand in either order.
        assert torch.equal(log_p.gather(-1, places), best)
        assert all(len(set(row)) == 8 for row in places.flatten(0, 1).tolist())
        log_p[4, 2, 7] = math.nan
        assert top_of_rows(log_p, 8)[0].isnan().nonzero().tolist() == [[4, 2, 0]]


def test_an_ensemble_averages_probabilities_in_search_and_in_scoring() -> None:
    first, second = model_of(1), model_of(2)
    state = Ensemble([Decoder(first), Decoder(second)]).start(SRC)
    begin = torch.full((2, 1), BOS)
    mean = (step(Decoder(first).start(SRC), begin).exp() + step(Decoder(second).start(SRC), begin).exp()) / 2
    assert torch.allclose(step(state, begin).exp(), mean, atol=1e-12)
    best = search(Ensemble([Decoder(first), Decoder(second)]), SRC[:1], HOW, ROWS)[0][0]
    scored = score([first, second], [([5, 6, 7, EOS], [*best.ids, EOS])])[0]
    assert scored.log_probability == pytest.approx(best.log_probability, abs=1e-9)


def test_forced_scoring_says_what_the_search_said_and_holds_the_logits_of_a_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, logits = model_of(3), Transformer.logits
    monkeypatch.setattr(forced_scoring, "_ROWS", 3)
    found = search(model, SRC, HOW, ROWS, nbest=4)
    sources = [[5, 6, 7, EOS], [8, EOS]]
    pairs = [(src, [*h.ids, EOS]) for src, best in zip(sources, found, strict=True) for h in best]
    said = [h.log_probability for best in found for h in best]
    sizes: list[int] = []
    monkeypatch.setattr(Transformer, "logits", lambda own, x: (sizes.append(x[..., 0].numel()), logits(own, x))[1])
    scored = score([model], pairs)
    assert max(sizes) == 3
    assert [one.log_probability for one in scored] == pytest.approx(said, abs=1e-9)
    assert scored[0].perplexity == pytest.approx(math.exp(-said[0] / len(pairs[0][1])))


def test_a_sample_does_not_depend_on_what_stands_beside_it() -> None:
    decoder, how = Decoder(model_of(5)), SamplingSettings(seed=7, temperature=0.7, top_k=5)
    together = sample(decoder, SRC, HOW, how, ROWS, [(3, 0), (4, 0)], 2)
    alone = sample(decoder, SRC[1:, :2], HOW, how, ROWS, [(4, 0)], 2)
    assert [h.ids for h in together[1]] == [h.ids for h in alone[0]]
    for found in together[0]:
        scored = score([decoder.model], [([5, 6, 7, EOS], [*found.ids, EOS])])[0]
        assert found.log_probability == pytest.approx(scored.log_probability, abs=1e-9)
    other = sample(decoder, SRC, HOW, how.model_copy(update={"seed": 8}), ROWS, [(3, 0), (4, 0)], 2)
    assert [h.ids for row in other for h in row] != [h.ids for row in together for h in row]


# Sampling against draws that are written out.


def drawn_by_hand(
    model: Transformer, source: list[int], name: tuple[int, ...], how: SamplingSettings, subwords: int, count: int
) -> list[tuple[list[int], float]]:
    """Ids and log-probabilities: each subword by the inverse of the cumulative distribution, in full forward passes."""
    longest = len(source) - 1 + HOW.max_extra
    numbers = np.random.default_rng([how.seed, *name]).random((longest + 1, count))
    found = []
    for place in range(count):
        ids, total = [BOS], 0.0
        while ids[-1] != EOS:
            step = len(ids) - 1
            row = model.logits(model(torch.tensor([source]), torch.tensor([ids])))[0, -1].log_softmax(0).tolist()
            allowed = [EOS] if step == longest else [EOS, *range(4, subwords)]
            likeliest = sorted(allowed, key=lambda token: -row[token])[: how.top_k or None]
            among = sorted(likeliest)
            reached = list(accumulate(math.exp(row[token] / how.temperature) for token in among))
            threshold = (1 - numbers[step, place]) * reached[-1]
            token = next(token for token, so_far in zip(among, reached, strict=True) if so_far >= threshold)
            ids.append(token)
            total += row[token]
        found.append((ids[1:-1], total))
    return found


@pytest.mark.parametrize(
    "how",
    [
        SamplingSettings(seed=3, temperature=0.5),
        SamplingSettings(seed=4, temperature=2.0, top_k=3),
        SamplingSettings(seed=6, top_k=ROWS),
        SamplingSettings(seed=7, top_k=2 * ROWS),
    ],
)
@torch.no_grad()
def test_samples_are_those_drawn_by_hand(how: SamplingSettings) -> None:
    model, names, subwords = model_of(8), [(3, 0), (11, 2)], ROWS - 2
    drawn = sample(Decoder(model), SRC, HOW, how, subwords, names, 3)
    assert [len(found) for found in drawn] == [3, 3]
    for source, name, found in zip(([5, 6, 7, EOS], [8, EOS]), names, drawn, strict=True):
        expected = drawn_by_hand(model, source, name, how, subwords, 3)
        assert [one.ids for one in found] == [ids for ids, _ in expected]
        for one, (ids, total) in zip(found, expected, strict=True):
            assert one.log_probability == pytest.approx(total, abs=1e-9)
            assert one.score == pytest.approx(total / ((5 + len(ids) + 1) / 6) ** HOW.alpha, abs=1e-9)


def test_one_sample_by_default_and_bounds_of_its_settings() -> None:
    decoder = Decoder(model_of(8))
    assert [len(found) for found in sample(decoder, SRC, HOW, SamplingSettings(seed=1), ROWS, [(0,), (1,)])] == [1, 1]
    assert (SamplingSettings(seed=0).temperature, SamplingSettings(seed=0).top_k) == (1.0, 0)
    (coldest, greedy) = (
        sample(decoder, SRC, HOW, how, ROWS, [(0,), (1,)])
        for how in (SamplingSettings(seed=0, temperature=1e-308), SamplingSettings(seed=0, top_k=1))
    )
    assert coldest == greedy, "the limit, without a division of all by almost nothing"
    for wrong in ({"seed": -1}, {"seed": 0, "temperature": 0.0}, {"seed": 0, "top_k": -1}):
        with pytest.raises(ValidationError):
            SamplingSettings.model_validate(wrong)


def test_of_equally_likely_subwords_top_k_draws_all() -> None:
    log_p = torch.log(torch.tensor([[[0.1, 0.3, 0.3, 0.3]]], dtype=torch.float64)).expand(1, 300, 4)
    uniform = torch.linspace(0.001, 1.0, 300, dtype=torch.float64)[None]
    tokens = _draw(log_p, uniform, SamplingSettings(seed=0, top_k=2))
    assert Counter(tokens[0].tolist()) == {1: 100, 2: 100, 3: 100}


def test_probabilities_of_a_bfloat16_model_are_float32() -> None:
    for dtype, expected in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        state = Decoder(model_of().to(dtype)).start(SRC)
        assert step(state, torch.full((2, 1), BOS)).dtype == expected
