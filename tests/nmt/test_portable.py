"""Portable arithmetic: exact where it says so, near ordinary arithmetic, and the same bits whatever computes it."""

import math
import os
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path

import pytest
import torch
import yaml
from clones import ROOT
from model_folders import folder_of
from torch import Tensor
from torch.nn import functional as F
from trainings import MakeJob, hashes, run, stopped

from nmt import loss, portable
from nmt.inference.engine import Engine
from nmt.inference.loading import LoadedModel
from nmt.inference.translator import Translator
from nmt.portable import Portable


def spread(*shape: int, seed: int = 1) -> Tensor:
    """Numbers of very different sizes."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) * 2.0 ** torch.randint(-12, 12, shape, generator=generator)


def fractions(x: Tensor) -> list[list[Fraction]]:
    return [[Fraction(number) for number in row] for row in x.tolist()]


@pytest.mark.parametrize("terms", [1, 8, 700])
def test_products_of_rounded_numbers_are_exact(terms: int) -> None:
    left, right = portable.on_grid(spread(3, terms), -1, portable.exact_bits(terms)), spread(terms, 2, seed=2)
    right = portable.on_grid(right, 0, portable.exact_bits(terms))
    columns = list(zip(*fractions(right), strict=True))
    exact = [[sum(map(Fraction.__mul__, row, column)) for column in columns] for row in fractions(left)]
    assert portable.product(left, right).tolist() == torch.tensor([[float(x) for x in row] for row in exact]).tolist()


def test_sums_of_rounded_numbers_are_exact() -> None:
    x = portable.on_grid(spread(4, 1000), 1, portable.BITS)
    assert portable.exact_sum(x, 1).tolist() == [float(sum(row)) for row in fractions(x)]
    rounded = portable.on_grid(spread(4, 1000).double(), 1, 43)
    assert portable.exact_sum(spread(4, 1000).double(), 1).tolist() == [float(sum(row)) for row in fractions(rounded)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_grid_changes_a_number_by_half_a_step_at_most(dtype: torch.dtype) -> None:
    x = spread(50, 40).to(dtype)
    step = 2.0 ** (x.abs().amax(1, keepdim=True).frexp().exponent - 20)
    rounded = portable.on_grid(x, 1, 20)
    assert torch.equal(rounded / step, (rounded / step).round())
    assert bool(((rounded - x).abs() <= step / 2).all())
    expected = portable.on_grid(spread(50, 40), (0, 1), 20).double()
    assert torch.equal(portable.on_one_grid(spread(50, 40), 2**13), expected)


def test_products_are_summed_exactly_over_long_rows_too() -> None:
    left, right = torch.rand(2, 9000), torch.rand(9000, 3)
    torch.testing.assert_close(portable.product(left, right), (left.double() @ right.double()).float())


def relative_errors(approximate: Tensor, exact: list[Decimal]) -> float:
    return max(abs(float(Decimal(x) / y - 1)) for x, y in zip(approximate.tolist(), exact, strict=True))


def test_exp_and_log_are_as_accurate_as_their_format() -> None:
    x = torch.linspace(-85, 0, 400)
    with localcontext(prec=40):
        assert relative_errors(portable.exp(x), [Decimal(v).exp() for v in x.tolist()]) < 1.5 * 2**-23
        x = torch.linspace(-600, 10, 400, dtype=torch.float64)
        assert relative_errors(portable.exp(x), [Decimal(v).exp() for v in x.tolist()]) < 2 * 2**-52
        x = torch.cat([torch.logspace(-30, 30, 300), torch.linspace(0.5, 2, 300)]).double() * 1.000001
        assert relative_errors(portable.log(x), [Decimal(v).ln() for v in x.tolist()]) < 3 * 2**-52
    smallest = portable.exp(torch.tensor([-math.inf, -1e4, 0.0])).tolist()
    assert smallest == pytest.approx([4.47e-38, 4.47e-38, 1], rel=0.01)


def test_square_roots_are_rounded_correctly() -> None:
    x = torch.linspace(0.01, 4, 4001)
    with localcontext(prec=40):
        exact = torch.tensor([float(Decimal(v).sqrt()) for v in x.tolist()], dtype=torch.float64)
    assert torch.equal(portable.root_(x.double()), exact)
    assert torch.equal(portable.root_(x), exact.float())


def test_sines_of_positions() -> None:
    x = torch.linspace(-2000, 2000, 4001, dtype=torch.float64)
    for computed, exact in ((portable.sine(x), x.sin()), (portable.sine(x, 1), x.cos())):
        torch.testing.assert_close(computed, exact, rtol=0, atol=3e-16)
    with Portable():
        cosines = x.cos()
    assert torch.equal(cosines, portable.sine(x, 1))


def gradients(kind: str, function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """The result and the gradients of its sum, weighted with another number for each element."""
    leaves = [x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
    with portable.arithmetic(kind):
        result = function(*leaves)
    weights = spread(*result.shape, seed=9).clamp(-1, 1)
    return [result.detach(), *torch.autograd.grad(result, [x for x in leaves if x.is_floating_point()], weights)]


IDS = torch.tensor([[3, 1, 3], [0, 3, 1]])
_DRAWN = torch.Generator().manual_seed(1)
A, B, C, D, E = (torch.rand(shape, generator=_DRAWN) - 0.5 for shape in ((2, 3, 4), (2, 4, 5), (6, 4), 6, 4))
MASKED = (8 * A).masked_fill(torch.arange(24).view(2, 3, 4) % 5 < 2, -math.inf)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (F.linear, (A, C, D)), (F.linear, (A, C)), (torch.matmul, (A, B)), (F.embedding, (IDS, C)),
        (lambda x: x.softmax(dim=-1), (MASKED,)), (lambda x: x / math.sqrt(3), (A,)),
        (lambda x, g, b: F.layer_norm(x, (4,), g, b, 1e-6), (A, E + 1, E)),
    ],
)  # fmt: skip
def test_functions_and_gradients_are_near_torchs(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> None:
    ordinary, exact = (gradients(kind, function, *inputs) for kind in ("ordinary", "portable"))
    torch.testing.assert_close(exact, ordinary, rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("needs_gradient", [True, False])
def test_the_loss_is_near_the_ordinary_one(needs_gradient: bool) -> None:
    logits = 3 * torch.randn(5, 40, generator=torch.Generator().manual_seed(1))
    label = torch.tensor([[0], [39], [7], [7], [1]])
    ordinary = loss.block_loss(logits.clone(), label, 0.1, needs_gradient)
    with Portable():
        exact = portable.block_loss(logits, label, 0.1, needs_gradient)
    torch.testing.assert_close(exact, ordinary, rtol=2e-6, atol=1e-7)


def test_search_is_portable_in_each_of_its_threads(tmp_path: Path) -> None:
    """The log-probabilities are near torch's, and not the same bits."""
    loaded, by_kind = LoadedModel(folder_of(tmp_path / "model"), torch.device("cpu")), []
    for kind in ("ordinary", "portable"):
        translations = Translator(loaded, engine=Engine(loaded, kind)).translations(["hund und katze"] * 3, 2)
        by_kind.append([candidate for translation in translations for candidate in translation.hypotheses])
    ordinary, exact = ([hypothesis.log_probability for hypothesis in hypotheses] for hypotheses in by_kind)
    assert [hypothesis.ids for hypothesis in by_kind[0]] == [hypothesis.ids for hypothesis in by_kind[1]]
    assert exact == pytest.approx(ordinary, rel=1e-5)
    assert exact != ordinary


def test_random_numbers_have_their_distributions() -> None:
    with Portable():
        uniform, normal = torch.empty(40000).uniform_(-3, 5), torch.nn.init.normal_(torch.empty(40000), std=0.5)
        standard = torch.empty(40000).normal_()
    assert float(standard.std()) == pytest.approx(1, abs=0.05)
    assert -3 <= float(uniform.min()) <= float(uniform.max()) <= 5
    assert [float(uniform.mean()), float(uniform.std())] == pytest.approx([1, 8 / 12**0.5], abs=0.05)
    quantiles = normal.quantile(torch.tensor([0.0228, 0.1587, 0.5, 0.8413, 0.9772]))
    assert quantiles.tolist() == pytest.approx([-1, -0.5, 0, 0.5, 1], abs=0.03)


def test_a_function_of_unknown_bits_is_refused() -> None:
    table = C[:3].requires_grad_()
    with Portable(), pytest.raises(NotImplementedError, match=r"^add of \(3, 4\) to \(2, 3, 4\): "):
        torch.add(A, table)
    with Portable(), pytest.raises(NotImplementedError, match=r"^tanh may give other bits elsewhere"):
        torch.ones(2).tanh()


@pytest.mark.parametrize("found_inf", [0.0, 1.0])
def test_adam_is_torchs(found_inf: float) -> None:
    """A parameter after steps with given gradients, and its moments."""
    results = []
    for kind in ("ordinary", "portable"):
        parameter = torch.ones(3, 2, requires_grad=True)
        optimizer = torch.optim.Adam([parameter], lr=0.1, betas=(0.9, 0.98), eps=1e-9, fused=True)
        for step in range(7):
            parameter.grad = spread(3, 2, seed=step)
            optimizer.found_inf = torch.tensor(found_inf)  # type: ignore[attr-defined] # not declared
            with portable.arithmetic(kind):
                optimizer.step()
        results.append([parameter.detach(), *optimizer.state[parameter].values()])
    torch.testing.assert_close(*results)


TRAININGS = """
import sys
from nmt.training import loop
for folder in sys.argv[1:]:
    sys.argv = ["loop", folder]
    loop.main()
"""


def test_a_training_has_the_same_bits_everywhere(tmp_path: Path, tiny_job: MakeJob) -> None:
    """Stopped and resumed with two threads and other instructions. Two processes: tests/distributed/test_ranks.py."""
    expected, resumed = [], [tmp_path / "sinusoidal", tmp_path / "learned"]
    for there in resumed:
        job = tiny_job({"positions": there.name}, arithmetic="portable", updates=4, verify_every=2)
        here = tmp_path / f"{there.name}-here"
        assert run(job, here)
        expected.append(hashes(here))
        stopped(job, there, 3)
        (there / "job.yaml").write_text(yaml.safe_dump(job))
    assert list(map(len, expected)) == [2, 2]
    others = {"OMP_NUM_THREADS": "2", "ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}
    command = [sys.executable, "-c", TRAININGS, *map(str, resumed)]
    variables = os.environ | others
    output = subprocess.run(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert output.count("weights will be bit-identical\n") == 2
    assert [*map(hashes, resumed)] == expected
