"""Attention weights of every layer and head for a pair of sentences, as arrays and pictures; `wmt attention`."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmt.common.files import writing
from nmt.common.shapes import Float
from nmt.errors import InputError
from nmt.ids import BOS, EOS
from nmt.inference.alignment import ATTENTIONS, attention_of
from nmt.inference.loading import LoadedModel
from nmt.inference.translator import Translator

COLUMNS = 4
"""Heads side by side in a picture of lines, so that text stays readable where a page is as wide as the picture."""


@dataclass(frozen=True)
class Attention:
    source: list[str]
    """Subwords of the source, EOS last: the keys of `cross`."""
    target: list[str]
    """Input of the decoder, BOS first: its queries. Query i predicts subword i + 1; the last query predicts EOS."""
    weights: dict[str, Float[Tensor, "N h query key"]]
    """By name (`encoder`, `decoder`, `cross`); each row sums to one."""


def attention(model: LoadedModel, source: str, target: str) -> Attention:
    """Return a model's attention for a pair of raw lines; raise InputError if the source has no text."""
    ids = model.encode(source)
    if not ids:
        raise InputError("the source has no text, so there is nothing to look at: give a sentence")
    written = [token for token in model.encode_target(target) if token != EOS]
    names = model.target_subwords.symbols
    return Attention(model.subwords.symbols(ids), names([BOS, *written]), attention_of(model.transformer, ids, written))


def write_files(looked: Attention, folder: Path) -> None:
    """Write attention.npz and a picture (SVG) of the clearest layer of each kind into an existing folder."""
    arrays: dict[str, Any] = {"source": np.array(looked.source), "target": np.array(looked.target)}
    arrays |= {name: weights.numpy() for name, weights in looked.weights.items()}
    np.savez_compressed(folder / "attention.npz", **arrays)
    for name in ATTENTIONS:
        # The layer whose heads tell words apart: for each word among the keys, some query that looks at it.
        # The decoder's keys begin with BOS, the others end with EOS.
        words = slice(1, None) if name == "decoder" else slice(-1)
        layer = int(looked.weights[name][..., words].amax(2).mean((1, 2)).argmax())
        (folder / f"{name}-layer-{layer + 1}.svg").write_bytes(draw_lines(looked, name, layer))


def write_quantized(pairs: Sequence[Attention], path: Path) -> None:
    """Write several pairs to one file of arrays `<name>.<number from 0>`: weights as uint8, where 255 stands for 1."""
    arrays: dict[str, Any] = {}
    for number, pair in enumerate(pairs):
        arrays |= {f"source.{number}": np.array(pair.source), f"target.{number}": np.array(pair.target)}
        for name, weights in pair.weights.items():
            arrays[f"{name}.{number}"] = (weights * 255).round().to(torch.uint8).numpy()
    np.savez_compressed(path, **arrays)


def draw_lines(looked: Attention, name: str, layer: int) -> bytes:
    """Draw a layer as the paper's figures 3 to 5: queries left, keys right, one colour per head, opacity by weight.

    A query of the decoder has the word that it writes. Returns the SVG; equal pictures give equal bytes.
    """
    import matplotlib
    from matplotlib.figure import Figure

    # An unescaped $ would begin a formula.
    source, target = ([word.replace("$", r"\$") for word in words] for words in (looked.source, looked.target))
    written = [*target[1:], source[-1]]
    queries, keys = source if name == "encoder" else written, target if name == "decoder" else source
    weights, content = looked.weights[name][layer], io.BytesIO()
    heads, rows = weights.shape[0], max(len(queries), len(keys))
    columns = min(heads, COLUMNS)
    lines = math.ceil(heads / columns)
    # Text stays text: the viewer's fonts have scripts that matplotlib's font lacks, of which it warns.
    with (
        matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "font.size": 8}),
        warnings.catch_warnings(action="ignore"),
    ):
        figure = Figure(figsize=(2.4 * columns, (0.22 * rows + 0.5) * lines), layout="constrained")
        for head, axes in enumerate(figure.subplots(lines, columns, squeeze=False).flat):
            axes.axis("off")
            if head >= heads:
                continue
            axes.set(xlim=(-0.9, 1.9), ylim=(rows - 0.5, -0.5), title=f"head {head + 1}")
            for x, words, alignment in ((-0.03, queries, "right"), (1.03, keys, "left")):
                for y, word in enumerate(words):
                    axes.text(x, y, word, ha=alignment, va="center", fontsize=7)
            for query, key in (weights[head] > 0.02).nonzero().tolist():
                alpha = float(weights[head, query, key])
                color = matplotlib.colormaps["tab10"](head % 10)
                axes.plot((0, 1), (query, key), color=color, alpha=alpha, linewidth=1.5)
        figure.savefig(content, format="svg", metadata={"Date": None})
    return content.getvalue()


def write_attention(folder: Path, source: str, target: str | None, output: Path) -> None:
    """Write a model's attention for a pair of raw lines to the new folder `output`.

    Without a target, uses the model's own translation. Raises InputError if the source has no text.
    """
    model = LoadedModel(folder)
    if target is None:
        target = next(Translator(model).translate([source]))
    looked = attention(model, source, target)
    with writing(output, folder=True) as temporary:
        write_files(looked, temporary)
