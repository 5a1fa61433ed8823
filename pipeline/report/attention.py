"""The attention of pairs of the validation set, as the page's view needs it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipeline.report.page import Figure, View

KINDS = {"encoder": "source to source", "decoder": "target to target", "cross": "target to source"}
"""What attends to what, in the order of the weights in the view's blob."""


def view(path: Path, languages: Sequence[str], pictures: Sequence[Figure]) -> View:
    """Return the view of the arrays that the stage `attention` wrote; without JavaScript the pictures are shown."""
    pairs, weights = [], []
    with np.load(path, allow_pickle=False) as arrays:
        layers, heads = arrays["encoder.0"].shape[:2]
        count = sum(name.startswith("source.") for name in arrays)
        for number in range(count):
            source, target = (arrays[f"{side}.{number}"].tolist() for side in ("source", "target"))
            pairs.append({"source": source, "target": target})
            weights += [arrays[f"{kind}.{number}"].tobytes() for kind in KINDS]
    content = {"layers": layers, "heads": heads, "languages": languages, "pairs": pairs}
    return View("attention", "attention", content, b"".join(weights), fallback=pictures)
