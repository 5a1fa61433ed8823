"""Decoding step by step against the model's parallel form; ensembles."""

import math

import pytest
import torch
from model_folders import model_settings
from torch import Tensor

from nmt import products
from nmt.evaluation import forced_scoring
from nmt.evaluation.forced_scoring import score
from nmt.ids import BOS, EOS, PAD
from nmt.inference.decoder import Decoder, DecodingState, mean_of
from nmt.inference.search import search, top_of_rows
from nmt.inference.settings import SearchSettings
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
    "changes", [{"d_k": 3, "d_v": 5}, {"sharing": "none", "positions": "learned", "projection_biases": False}]
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


def test_packed_weights_decode_as_the_models_own(monkeypatch: pytest.MonkeyPatch) -> None:
    model, results = model_of().float(), []
    for by_onednn in (False, True):
        monkeypatch.setattr(products, "ONEDNN", by_onednn)
        decoder = Decoder(model)
        packed = sum(isinstance(module, products.Fixed) for module in decoder.model.modules())
        assert packed == (2 * (6 + 5) if by_onednn else 0)  # Two layers a stack; five others are fused.
        assert decoder.model.embedding.table is model.embedding.table
        results.append(step(decoder.start(SRC), torch.full((2, 1), BOS)))
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-5)
    assert all(isinstance(module, products.Linear) for name, module in model.named_modules() if ".W_" in name)


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


def test_an_ensemble_computes_with_logarithms() -> None:
    """As exp(-300) is 0 in float32."""
    unlikely = Decoder(model_of(1).float())
    unlikely.output = lambda x: x.new_zeros(*x.shape[:2], ROWS).index_fill(2, torch.tensor(7), -300.0)
    log_p = next(mean_of([unlikely.start(SRC).step(torch.full((2, 1), BOS)) for _ in range(2)]))
    assert log_p[0, 0, 7] == pytest.approx(-300 - math.log(ROWS - 1))


def test_forced_scoring_says_what_the_search_said_and_holds_a_blocks_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    model, logits = model_of(3), Transformer.logits
    monkeypatch.setattr(forced_scoring, "_ROWS", 3)
    nbest_lists = search([Decoder(model)], SRC, HOW, ROWS, nbest=4)
    sources = [[5, 6, 7, EOS], [8, EOS]]
    pairs = [(src, [*h.ids, EOS]) for src, best in zip(sources, nbest_lists, strict=True) for h in best]
    said = [h.log_probability for best in nbest_lists for h in best]
    sizes: list[int] = []
    monkeypatch.setattr(Transformer, "logits", lambda self, x: (sizes.append(x[..., 0].numel()), logits(self, x))[1])
    scored = score(model, pairs)
    assert max(sizes) == 3
    assert [one.log_probability for one in scored] == pytest.approx(said, abs=1e-9)
    per_subword = [math.exp(-each / len(target)) for each, (_, target) in zip(said, pairs, strict=True)]
    assert [one.perplexity for one in scored] == pytest.approx(per_subword)


def test_probabilities_of_a_bfloat16_model_are_float32() -> None:
    for dtype, expected in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        state = Decoder(model_of().to(dtype)).start(SRC)
        assert step(state, torch.full((2, 1), BOS)).dtype == expected
