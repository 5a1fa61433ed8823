"""How long a link of the chain of hashes takes: `python -m tests.bench.chain --row base --vocabulary 37000`.

It hashes weights and moments of a row's size, in processor time, which a busy machine hardly changes.
"""

import argparse
import statistics
import time

import torch

from nmt.common.tensors import digest
from nmt.flops import parameters
from pipeline.config import rows
from tests.bench.conditions import announce


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.chain", description=__doc__)
    parser.add_argument("--row", default="base", help="a row of pipeline/config/rows.yaml")
    parser.add_argument("--vocabulary", type=int, default=37_000)
    parser.add_argument("--times", type=int, default=5)
    a = parser.parse_args()
    announce(parser.prog)
    count = parameters(rows.model(a.row), a.vocabulary)
    # A hundred tensors for weights and each moment, as a model of this size has.
    tensors = {f"{number:03}": torch.rand(count // 100) for number in range(300)}
    seconds = []
    for _ in range(a.times):
        start = time.process_time()
        digest(tensors)
        seconds.append(time.process_time() - start)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    median, spread = statistics.median(seconds), f"{min(seconds):.3f} to {max(seconds):.3f}"
    print(f"{a.row}: {count:,} parameters, {size / 1e6:,.0f} MB of weights and moments")
    print(f"a link: {median:.3f} s of processor time ({spread}), {size / median / 1e9:.2f} GB/s")


if __name__ == "__main__":
    main()
