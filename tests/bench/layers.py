"""Table 1, measured: how the cost of a layer grows with the length n of a sequence.

`python -m tests.bench.layers [--longest 4096] [--figure layers.svg]` runs forward and backward passes of one sequence
of n = 16, 32, ... positions of d = 512 through self-attention (Eq. 1 with 8 heads, without projections), self-attention
that is restricted to blocks (r), torch's LSTM and a convolution of width k, in turn, on one thread. Printed:
milliseconds of processor time, FLOPs, bytes that the backward pass keeps, the exponents of n that fit the longer half,
beside the paper's, and the lengths from which on another layer is faster than self-attention.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from nmt.model import attention
from tests.bench.conditions import announce, conditions, spread

D_MODEL, HEADS = 512, 8
R = 64  # positions of a block; each attends to its own block and its two neighbours
K = 3  # width of the convolution
SECONDS = 0.5  # least processor time of a measurement, in seconds

Layer = Callable[[Tensor], Tensor]


def heads(x: Tensor) -> Tensor:
    """[1, n, d] as [1, h, n, d / h]."""
    return x.unflatten(2, (HEADS, -1)).transpose(1, 2)


def self_attention(x: Tensor) -> Tensor:
    """Eq. 1, every position to every position."""
    split = heads(x)
    return attention(split, split, split, None)


def restricted(x: Tensor) -> Tensor:
    """Eq. 1 within blocks of r positions and their two neighbours, which section 4 proposes for long sequences."""
    blocks = F.pad(x, (0, 0, 0, -x.shape[1] % R)).unflatten(1, (-1, R))[0]
    around = F.pad(blocks, (0, 0, 0, 0, 1, 1))
    context = torch.cat((around[:-2], around[1:-1], around[2:]), dim=1)
    keys = heads(context)
    return attention(heads(blocks), keys, keys, None)


class Recurrent(nn.Module):
    """An LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(D_MODEL, D_MODEL, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.lstm(x)[0]
        return output


class Convolutional(nn.Module):
    """A convolution over k positions."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(D_MODEL, D_MODEL, K, padding=K // 2)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.convolution(x.transpose(1, 2))
        return output


def layers() -> dict[str, Layer]:
    """The layers of Table 1, by name."""
    torch.manual_seed(1)
    return {
        "self-attention": self_attention,
        "self-attention (restricted)": restricted,
        "recurrent": Recurrent(),
        "convolutional": Convolutional(),
    }


PAPER = {"self-attention": 2, "self-attention (restricted)": 1, "recurrent": 1, "convolutional": 1}
"""The exponent of n in Table 1."""


def once(layer: Layer, n: int) -> None:
    """A forward and a backward pass."""
    x = torch.randn(1, n, D_MODEL, requires_grad=True)
    layer(x).sum().backward()


def milliseconds(compared: Mapping[str, Layer], n: int) -> dict[str, dict[str, float]]:
    """Milliseconds of processor time of a pass through each layer: the layers in turn, after one pass that warms up.

    As many rounds as fill SECONDS for every layer, at least three.
    """
    times: dict[str, list[float]] = {name: [] for name in compared}
    for layer in compared.values():
        once(layer, n)
    while any(unfinished := [len(line) < 3 or sum(line) < 1000 * SECONDS for line in times.values()]):
        for (name, layer), more in zip(compared.items(), unfinished, strict=True):
            if more:
                start = time.process_time()
                once(layer, n)
                times[name].append(1000 * (time.process_time() - start))
    return {name: spread(values) for name, values in times.items()}


def kept_bytes(layer: Layer, n: int) -> int:
    """Bytes of the tensors that autograd keeps from the forward pass, weights aside, each storage once."""
    storages: dict[int, int] = {}
    weights = {weight.data_ptr() for weight in layer.parameters()} if isinstance(layer, nn.Module) else set()

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = layer(torch.randn(1, n, D_MODEL, requires_grad=True))
    del result
    return sum(storages.values())


def multiplications(layer: Layer, n: int) -> int:
    """FLOPs of both passes. torch counts none for an LSTM on a CPU: 8 d^2 multiplications a position, three times."""
    with FlopCounterMode(display=False) as counter:
        once(layer, n)
    return counter.get_total_flops() or 3 * 16 * n * D_MODEL**2


def exponent(lengths: list[int], values: list[float]) -> float:
    """The slope of log(value) over log(n) in the longer half."""
    half = len(lengths) // 2
    return float(np.polyfit(np.log(lengths[half:]), np.log(values[half:]), 1)[0])


def crossing(lengths: list[int], attention_ms: list[float], other_ms: list[float]) -> int | None:
    """The first length from which on the other layer is faster, or None."""
    slower = [n for n, ours, other in zip(lengths, attention_ms, other_ms, strict=True) if ours <= other]
    later = [n for n in lengths if not slower or n > slower[-1]]
    return later[0] if later else None


def measure(longest: int) -> dict[str, Any]:
    """Every layer at every length."""
    lengths = [n for n in (2**power for power in range(4, 20)) if n <= longest]
    compared = layers()
    times = [milliseconds(compared, n) for n in lengths]
    table: dict[str, Any] = {}
    for name, layer in compared.items():
        values = {
            "ms": [timing[name]["median"] for timing in times],
            "flops": [float(multiplications(layer, n)) for n in lengths],
            "kept_bytes": [float(kept_bytes(layer, n)) for n in lengths],
        }
        exponents = {key: round(exponent(lengths, line), 2) for key, line in values.items()}
        table[name] = values | {"spread": [timing[name] for timing in times], "exponents": exponents}
    ours = table["self-attention"]["ms"]
    crossings = {name: crossing(lengths, ours, row["ms"]) for name, row in table.items() if name != "self-attention"}
    return {**conditions(), "d_model": D_MODEL, "r": R, "k": K, "n": lengths, "layers": table, "faster_from": crossings}


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Milliseconds over n, both logarithmic."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.0), layout="constrained")
    axes = figure.add_subplot()
    for name, row in report["layers"].items():
        axes.plot(report["n"], row["ms"], marker="o", markersize=3, label=f"{name}: n^{row['exponents']['ms']:.2f}")
    axes.set(xscale="log", yscale="log", xlabel="n", ylabel="milliseconds of processor time,\nforward and backward")
    axes.set_xticks(report["n"], [str(n) for n in report["n"]], fontsize=7)
    axes.minorticks_off()
    axes.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.layers", description=__doc__)
    parser.add_argument("--longest", type=int, default=4096)
    parser.add_argument("--figure", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    announce(parser.prog)
    report = measure(options.longest)
    if options.figure:
        draw(report, options.figure)
    if options.json:
        print(json.dumps(report))
        return
    print({key: value for key, value in report.items() if key not in ("layers", "n")})
    print(f"{'n':30s}" + "".join(f"{n:>9d}" for n in report["n"]) + "  exponent, paper's")
    for name, row in report["layers"].items():
        for key, unit in (("ms", 1.0), ("flops", 1e6), ("kept_bytes", 1e6)):
            values = "".join(f"{value / unit:9.2f}" for value in row[key])
            print(
                f"{name if key == 'ms' else '  ' + key + ' / 1e6':30s}{values}  {row['exponents'][key]}, {PAPER[name]}"
            )
            if key == "ms":
                for bound in ("least", "largest"):
                    print(f"{'  ' + bound:30s}" + "".join(f"{timing[bound]:9.2f}" for timing in row["spread"]))


if __name__ == "__main__":
    main()
