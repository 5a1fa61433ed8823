"""Label smoothing against distributions written by hand, and its gradient against autograd's."""

import pytest
import torch
from torch.nn import functional as F

from nmt import loss
from nmt.loss import ROWS, block_loss, r_drop_loss, smoothed_cross_entropy


@pytest.mark.parametrize(("eps", "frozen"), [(0.0, ""), (0.1, ""), (0.1, "states"), (0.1, "table")])
def test_equals_the_distribution_written_out_and_its_gradient(eps: float, frozen: str) -> None:
    torch.manual_seed(0)
    positions, vocabulary, d_model = 2 * ROWS["cpu"] + 17, 11, 6
    states = torch.randn(positions, d_model, requires_grad=frozen != "states")
    table = torch.randn(vocabulary, d_model, requires_grad=frozen != "table")
    inputs = [tensor for tensor in (states, table) if tensor.requires_grad]
    labels = torch.randint(vocabulary, (positions,))
    q = torch.full((positions, vocabulary), eps / (vocabulary - 1))
    q.scatter_(1, labels[:, None], 1 - eps)
    expected = -(q * F.log_softmax(states @ table.T, dim=1)).sum()
    expected_gradients = torch.autograd.grad(expected / 7, inputs)
    smoothed, likelihood = smoothed_cross_entropy(states, table, labels, eps)
    gradients = torch.autograd.grad(smoothed / 7, inputs)
    assert smoothed.item() == pytest.approx(expected.item(), rel=1e-6)
    plain = F.cross_entropy(states @ table.T, labels, reduction="sum")
    assert likelihood.item() == pytest.approx(plain.item(), rel=1e-6)
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-5, atol=1e-4)


def test_r_drop_equals_its_equation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of Eq. 4 of arXiv:2106.14448, with an odd number of rows in a part's memory."""
    torch.manual_seed(0)
    positions, vocabulary, alpha, eps = 40, 11, 5.0, 0.1
    monkeypatch.setattr(loss, "PART", 13 * vocabulary)
    states, table = torch.randn(2 * positions, 6, requires_grad=True), torch.randn(vocabulary, 6, requires_grad=True)
    labels = torch.randint(vocabulary, (positions,)).repeat_interleave(2)
    log_p = F.log_softmax(states @ table.T, dim=1)
    q = torch.full_like(log_p, eps / (vocabulary - 1)).scatter_(1, labels[:, None], 1 - eps)
    one, other = log_p[::2], log_p[1::2]
    divergence = sum(F.kl_div(*pair, log_target=True, reduction="sum") for pair in ((one, other), (other, one)))
    expected = (-(q * log_p).sum() + alpha / 2 * divergence) / 2
    expected_gradients = torch.autograd.grad(expected, (states, table), retain_graph=True)
    found, likelihood = smoothed_cross_entropy(states, table, labels, eps, r_drop_loss(alpha, block_loss))
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    assert likelihood.item() == pytest.approx(F.nll_loss(log_p, labels, reduction="sum").item() / 2, rel=1e-6)
    torch.testing.assert_close(torch.autograd.grad(found, (states, table)), expected_gradients, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_positions_without_a_label_are_left_out(device: str) -> None:
    """As those that batches add; on meta as on a GPU, where they take no part in the products."""
    torch.manual_seed(0)
    states, table, labels = torch.randn(32, 8), torch.randn(11, 8), torch.randint(11, (30,))

    def gradients(given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inputs = [given.to(device).requires_grad_(), table.to(device).requires_grad_()]
        return torch.autograd.grad(smoothed_cross_entropy(*inputs, labels.to(device), 0.1)[0], inputs)

    found, expected = gradients(states), gradients(states[:30])
    assert [gradient.shape for gradient in found] == [(32, 8), (11, 8)]
    if device == "cpu":
        assert not found[0][30:].any()
        torch.testing.assert_close([gradient[:30] for gradient in found], [*expected], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_few_rows_at_a_time_give_the_same_gradient(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """To the bit; 12 rows at a time, and two where a row has more logits than a part."""
    torch.manual_seed(3)
    positions, vocabulary = ROWS["cpu"] + 30, 40
    states, table = (torch.randn(size, 8, requires_grad=True) for size in (positions, vocabulary))
    labels, results = torch.randint(vocabulary, (positions,)), []
    for part in (2**19, 13 * vocabulary + 1, vocabulary - 1):
        monkeypatch.setattr(loss, "PART", part)
        sums = smoothed_cross_entropy(states.to(dtype), table, labels, 0.1)
        with torch.no_grad():
            assert smoothed_cross_entropy(states.to(dtype), table, labels, 0.1) == sums
        results.append((torch.stack(sums), *torch.autograd.grad(sums[0], [states, table])))
    for other in results[1:]:
        torch.testing.assert_close(other[0], results[0][0], rtol=1e-12, atol=0)
        assert all(map(torch.equal, other[1:], results[0][1:]))


def test_bfloat16_rounds_each_gradient_and_not_the_scale_of_all() -> None:
    """1 / 24,999 is 0.2% away from the nearest bfloat16."""
    torch.manual_seed(2)
    states, table, labels = torch.randn(400, 32), torch.randn(50, 32) / 6, torch.randint(50, (400,))
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        given, weights = states.to(dtype).requires_grad_(), table.clone().requires_grad_()
        smoothed, _ = smoothed_cross_entropy(given, weights, labels, 0.1)
        gradients.append([one.float() for one in torch.autograd.grad(smoothed / 24_999, [given, weights])])
    for exact, rounded in zip(*gradients, strict=True):
        # The slope of one over the other.
        assert ((exact * rounded).sum() / (exact * exact).sum()).item() == pytest.approx(1.0, abs=8e-4)


def test_sums_are_in_float64() -> None:
    """100,000 equal terms: a float32 sum would be off in its seventh digit."""
    states, labels = torch.zeros(100_000, 2), torch.zeros(100_000, dtype=torch.int64)
    sums = smoothed_cross_entropy(states, torch.zeros(4, 2), labels, 0.1)
    term = -F.log_softmax(torch.zeros(4), dim=0)[0].item()
    assert [one.item() for one in sums] == pytest.approx([100_000 * term] * 2, rel=1e-10)
