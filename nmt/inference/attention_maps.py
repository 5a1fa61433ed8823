"""Attention weights of every layer and head for a pair of sentences, as arrays and pictures; `wmt attention`."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from nmt.common.files import writing
from nmt.common.shapes import Float
from nmt.config import BOS, EOS, InputError
from nmt.inference.alignment import ATTENTIONS, attention_of
from nmt.inference.loading import Models
from nmt.inference.translator import Translator

COLUMNS = 4
"""Heads side by side in a picture of lines, so that text stays readable where a page is as wide as the picture."""
SUBWORD_INCHES = 0.11
"""Side of a cell of a matrix: enough for the subwords at its edges."""


@dataclass(frozen=True)
class Attention:
    """All attention weights for one pair."""

    source: list[str]
    """Subwords of the source, EOS last: the keys of `cross`."""
    target: list[str]
    """Input of the decoder, BOS first: its queries. Query i predicts subword i + 1; the last query predicts EOS."""
    weights: dict[str, Float[Tensor, "N h query key"]]
    """By name; each row sums to one."""


def attention(models: Models, source: str, target: str) -> Attention:
    """Return the first model's attention for a pair of raw lines; raise InputError if the source has no text."""
    ids = models.encode(source)
    if not ids:
        raise InputError("the source has no text, so there is nothing to look at: give a sentence")
    written = [token for token in models.encode_target(target) if token != EOS]
    names = models.target_subwords.symbols
    return Attention(
        models.subwords.symbols(ids), names([BOS, *written]), attention_of(models.members[0], ids, written)
    )


def save(found: Attention, folder: Path) -> list[Path]:
    """Write attention.npz and pictures (SVG) to a new folder; return the files."""
    with writing(folder) as temporary:
        temporary.mkdir()
        write_files(found, temporary)
    return sorted(folder.iterdir())


def write_files(found: Attention, folder: Path) -> None:
    """Write attention.npz and pictures (SVG) into an existing folder."""
    layer = max(0, found.weights["encoder"].shape[0] - 2)
    arrays = {"source": np.array(found.source), "target": np.array(found.target)}
    arrays |= {name: weights.numpy() for name, weights in found.weights.items()}
    np.savez_compressed(folder / "attention.npz", allow_pickle=False, **arrays)
    for name in ATTENTIONS:
        (folder / f"{name}-all-heads.svg").write_bytes(draw_matrices(found, name))
        (folder / f"{name}-layer-{layer + 1}.svg").write_bytes(draw_lines(found, name, layer))


def write_quantized(found: Sequence[Attention], path: Path) -> None:
    """Write several pairs to one file of arrays `<name>.<number from 0>`: weights as uint8, where 255 stands for 1."""
    arrays: dict[str, Any] = {}
    for number, pair in enumerate(found):
        arrays |= {f"source.{number}": np.array(pair.source), f"target.{number}": np.array(pair.target)}
        for name, weights in pair.weights.items():
            arrays[f"{name}.{number}"] = (weights * 255).round().to(torch.uint8).numpy()
    np.savez_compressed(path, allow_pickle=False, **arrays)


@contextmanager
def _figure(content: io.BytesIO, width: float, height: float, **settings: Any) -> Iterator[Any]:
    """Yield a figure of this size in inches, and write it as SVG; equal pictures give equal bytes."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(cast("Any", settings)):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        figure.savefig(content, format="svg", metadata={"Date": None})


def _queries_and_keys(found: Attention, name: str) -> tuple[list[str], list[str]]:
    """Return the subwords of the rows and of the columns of an attention's matrices."""
    return found.source if name == "encoder" else found.target, found.target if name == "decoder" else found.source


def _plain(word: str) -> str:
    """Return a word as matplotlib draws it unchanged: an unescaped $ would begin a formula."""
    return word.replace("$", r"\$")


def draw_matrices(found: Attention, name: str) -> bytes:
    """Draw the matrices of all layers (rows) and heads (columns), with subwords at the edges; return the SVG."""
    weights, content = found.weights[name], io.BytesIO()
    (layers, heads), (queries, keys) = weights.shape[:2], _queries_and_keys(found, name)
    width, height = max(1.3, SUBWORD_INCHES * len(keys)), max(1.3, SUBWORD_INCHES * len(queries))
    settings = {"svg.hashsalt": name, "font.size": 7}
    with _figure(content, width * heads + 1.0, height * layers + 1.0, **settings) as figure:
        for layer, row in enumerate(figure.subplots(layers, heads, squeeze=False)):
            for head, axes in enumerate(row):
                axes.imshow(weights[layer, head].numpy(), cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
                axes.set(xticks=[], yticks=[], title=f"layer {layer + 1}, head {head + 1}")
                if head == 0:
                    axes.set_yticks(range(len(queries)), map(_plain, queries), fontsize=6)
                if layer == layers - 1:
                    axes.set_xticks(range(len(keys)), map(_plain, keys), fontsize=6, rotation=90)
    return content.getvalue()


def draw_lines(found: Attention, name: str, layer: int) -> bytes:
    """Draw a layer as the paper's figures 3 to 5: queries left, keys right, one colour per head, opacity by weight.

    Returns the SVG.
    """
    from matplotlib import colormaps

    queries, keys = _queries_and_keys(found, name)
    weights, content = found.weights[name][layer], io.BytesIO()
    heads, rows = weights.shape[0], max(len(queries), len(keys))
    columns = min(heads, COLUMNS)
    lines = math.ceil(heads / columns)
    settings = {"svg.hashsalt": name, "svg.fonttype": "path", "font.size": 8}
    with _figure(content, 2.4 * columns, (0.22 * rows + 0.5) * lines, **settings) as figure:
        for head, axes in enumerate(figure.subplots(lines, columns, squeeze=False).flat):
            axes.axis("off")
            if head >= heads:
                continue
            axes.set(xlim=(-0.9, 1.9), ylim=(rows - 0.5, -0.5), title=f"head {head + 1}")
            for x, words, alignment in ((-0.03, queries, "right"), (1.03, keys, "left")):
                for y, word in enumerate(words):
                    axes.text(x, y, _plain(word), ha=alignment, va="center", fontsize=7)
            for query, key in (weights[head] > 0.02).nonzero().tolist():
                alpha = float(weights[head, query, key])
                axes.plot((0, 1), (query, key), color=colormaps["tab10"](head % 10), alpha=alpha, linewidth=1.5)
    return content.getvalue()


def write_attention(folder: Path, source: str, target: str | None, output: Path) -> list[Path]:
    """Write a model's attention for a pair of raw lines to `output`; return the files.

    Without a target, uses the model's own translation. Raises InputError if the source has no text.
    """
    models = Models([folder])
    if target is None:
        target = next(Translator(models).translate([source]))
    return save(attention(models, source, target), output)
