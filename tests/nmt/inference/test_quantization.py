"""8-bit weights: how exact they are, and that a sentence's translation depends on that sentence alone."""

import pytest
import torch
from refusals import check_refusal

from nmt.ids import EOS
from nmt.inference.decoder import Decoder
from nmt.inference.quantization import Int8Linear, is_quantized, quantize
from tests.nmt.inference.test_decoder import model_of


def products(rows: int, bias: bool) -> tuple[Int8Linear, torch.Tensor, torch.Tensor]:
    """A layer, an input whose rows have very different sizes, and the exact result."""
    torch.manual_seed(0)
    weight, offset = torch.randn(48, 32), torch.randn(48) if bias else None
    x = torch.randn(rows, 3, 32) * torch.logspace(-3, 3, rows)[:, None, None]
    return Int8Linear(weight, offset), x, torch.nn.functional.linear(x, weight, offset)


@pytest.mark.parametrize("bias", [True, False])
def test_the_error_of_every_row_is_below_two_levels(bias: bool) -> None:
    """The relative error, in steps of the inputs: 0.015 with VNNI, 0.03 without."""
    layer, x, exact = products(7, bias)
    error = (layer(x) - exact).norm(dim=-1) / exact.norm(dim=-1)
    assert error.max() < 1.9 / layer.levels


def test_a_row_does_not_depend_on_the_other_rows_and_zeros_stay_finite() -> None:
    layer, x, _ = products(9, True)
    together = layer(x)
    assert all(torch.equal(layer(x[row : row + 1])[0], together[row]) for row in range(9))
    layer = Int8Linear(torch.zeros(4, 8), torch.ones(4))
    assert torch.equal(layer(torch.zeros(2, 8)), torch.ones(2, 4))


def test_without_wide_instructions_no_sum_of_two_products_exceeds_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    layer = Int8Linear(torch.ones(1, 2), None)
    largest_x, largest_weight = 2 * layer.levels + 1, 127
    assert 2 * largest_x * largest_weight < 2**15
    assert layer(torch.ones(1, 2)).item() == pytest.approx(2.0, rel=0.02)


def test_all_linear_layers_have_8_bit_weights_and_the_model_says_nearly_the_same() -> None:
    exact, model = model_of().float(), model_of().float()
    quantize(model)
    assert is_quantized(model)
    assert not is_quantized(exact)
    assert not any(isinstance(module, torch.nn.Linear) for module in model.modules())
    src, tgt = torch.tensor([[5, 6, 7, EOS]]), torch.tensor([[1, 9, 8]])
    with torch.inference_mode():
        difference = (model(src, tgt) - exact(src, tgt)).norm() / exact(src, tgt).norm()
        parts = Decoder(model).start(src).step(tgt[:, :1])
        expected = exact.logits(exact(src, tgt[:, :1])).log_softmax(2)[:, 0]
        assert torch.allclose(next(parts)[:, 0], expected, atol=0.2)
    assert 0.0 < difference < 0.05


def test_other_processors_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx2_supported", lambda: False)
    check_refusal("fast 8-bit products for x86 processors with AVX2 alone", quantize, model_of().float())
