"""What packing sentences into rows of one length would cost: python -m tests.bench.packing

The same sentences of row `small`, all of one length, go forward and backward as a batch of a bin, which has no padding
here, and packed into rows of a fixed number of positions, where a mask keeps sentences apart. Attention computes whole
rows, so longer rows cost more. The forms take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from nmt.config import ModelSettings
from nmt.model import Transformer
from tests.bench.conditions import announce
from tests.bench.training import row_settings

VOCABULARY = 8000
LENGTH, SENTENCES = 14, 108
"""Like an update of row `small` on Multi30k: 1,500 target tokens."""
PACKED = (1, 4, 9, 18)
"""Sentences in a row."""


def passes(model: Transformer, together: int) -> Callable[[], None]:
    """What computes the decoder's output and all gradients, with `together` sentences in a row."""
    ids = torch.randint(4, VOCABULARY, (SENTENCES // together, LENGTH * together))
    sentence = torch.arange(ids.shape[1]) // LENGTH
    mask = (sentence[:, None] == sentence)[None, None].expand(len(ids), 1, -1, -1)
    if together == 1:
        mask = mask[:, :, :1]

    def run() -> None:
        model.zero_grad()
        # The decoder's own mask is of the same size for packed sentences: it costs the same.
        model.decode(ids, model.encode(ids, mask), mask).sum().backward()

    return run


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.packing", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    announce(parser.prog)
    torch.manual_seed(1)
    model = Transformer(ModelSettings.model_validate(row_settings("small", "en-de")["model"]), VOCABULARY)
    forms = {together: passes(model, together) for together in PACKED}
    seconds: dict[int, list[float]] = {together: [] for together in forms}
    for number in range(options.rounds + 1):
        for together, run in forms.items():
            began = time.perf_counter()
            run()
            if number:  # The first round takes memory from the system.
                seconds[together].append(time.perf_counter() - began)
    bins = statistics.median(seconds[1])
    for together, times in seconds.items():
        ratio = statistics.median(times) / bins
        spread = f"{1000 * min(times):.0f} to {1000 * max(times):.0f}"
        print(
            f"rows of {LENGTH * together:3d}: {1000 * statistics.median(times):4.0f} ms ({spread}), {ratio:.2f} of bins"
        )


if __name__ == "__main__":
    main()
