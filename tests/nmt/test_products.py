"""oneDNN's products beside torch's own: the same but for rounding, and taken only where they are meant."""

from collections.abc import Callable
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from nmt import products
from nmt.portable import Portable


@pytest.fixture(params=[True, False], ids=["avx512", "avx2"])
def onednn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Products are oneDNN's, whatever the processor, and counted."""
    monkeypatch.setattr(products, "_onednn", used := Mock(wraps=products._onednn))
    monkeypatch.setattr(products, "ONEDNN", True)
    monkeypatch.setattr(products, "AVX512", request.param)
    return used


@pytest.mark.parametrize(("maker", "taken"), [("AuthenticAMD", True), ("GenuineIntel", False), ("", False)])
def test_the_processors_maker_decides(monkeypatch: pytest.MonkeyPatch, maker: str, taken: bool) -> None:
    """Every version of torch that we allow has the operators on x86."""
    monkeypatch.setattr(products, "cpuinfo", {"vendor_id": maker}.__getitem__)
    assert products.has_fast_onednn() == taken
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not products.has_fast_onednn()


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(70, 24), (2, 3, 24), (1, 24), (0, 24)])
def test_results_and_gradients_are_torchs(onednn: Mock, shape: tuple[int, ...], bias: bool, relu: bool) -> None:
    torch.manual_seed(1)
    given = [torch.randn(size, requires_grad=True) for size in (shape, (100, 24), (100,))][: 2 + bias]
    y, expected = products.linear(*given, relu=relu), F.linear(*given)
    torch.testing.assert_close(y, expected.relu() if relu else expected, rtol=1e-5, atol=1e-5)
    assert onednn.call_count == (shape[0] > 0)
    dy = torch.randn(100, *y.shape[:-1]).movedim(0, -1)  # As a transposed view, whose bits are a copy's, too.
    ours, plain = (torch.autograd.grad(result, given, dy) for result in (y, expected.relu() if relu else expected))
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-5)
    assert all(gradient.is_contiguous() for gradient in ours)


@pytest.mark.parametrize("rows", [1, 3, 64])
def test_fixed_weights_and_sums(onednn: Mock, rows: int) -> None:
    """Without AVX-512 transposed matrices are torch's to multiply; one with one column is not transposed."""
    x, weight, bias = torch.randn(rows, 40), torch.randn(72, 40), torch.randn(72)
    for given in (bias, None):
        result = products.Fixed(weight, given)(x)
        torch.testing.assert_close(result, F.linear(x, weight, given), rtol=1e-5, atol=1e-5)
    result = products.add_matmul_(torch.ones(40, 72), x.t(), x @ weight.t())
    torch.testing.assert_close(result, 1 + x.t() @ (x @ weight.t()), rtol=1e-5, atol=1e-4)
    assert onednn.call_count == 2 + (products.AVX512 or rows == 1)


X, WEIGHT = torch.ones(4, 8), torch.ones(3, 8)


@pytest.mark.parametrize(
    "multiply",
    [
        lambda: products.linear(X.double(), WEIGHT.double()),
        lambda: products.linear(X.bfloat16(), WEIGHT.bfloat16()),
        lambda: products.linear(X.to("meta"), WEIGHT.to("meta")),
        lambda: products.matmul(X.double(), WEIGHT.double().t()),
        lambda: products.Fixed(WEIGHT.double(), None)(X.double()),
    ],
)
def test_elsewhere_products_are_torchs(onednn: Mock, multiply: Callable[[], Tensor]) -> None:
    assert multiply().shape == (4, 3)
    onednn.assert_not_called()


def test_portable_arithmetic_and_autocast_have_their_own(onednn: Mock) -> None:
    with Portable():
        assert products.linear(X, WEIGHT, relu=True).tolist() == [[8.0] * 3] * 4
        with torch.no_grad():
            assert products.Fixed(WEIGHT, None)(X).tolist() == [[8.0] * 3] * 4
    with torch.autocast("cpu", torch.bfloat16):
        assert products.linear(X, WEIGHT).dtype == torch.bfloat16
    onednn.assert_not_called()
