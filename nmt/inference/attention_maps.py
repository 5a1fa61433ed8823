"""Where a model looks: every layer's and head's attention for a pair of sentences, as arrays and pictures.

`wmt attention` writes attention.npz and pictures in the manner of the paper's figures 3 to 5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from nmt.common.files import writing
from nmt.common.shapes import Float
from nmt.config import BOS, EOS, InputError
from nmt.inference.loading import Models, padded
from nmt.inference.translator import Translator
from nmt.model import MultiHeadAttention, Transformer

KINDS = ("encoder", "decoder", "cross")
"""Self-attention of either stack, and the decoder's over the encoder's output."""


@dataclass(frozen=True)
class Attention:
    """All weights for one pair. Rows are queries; each row sums to one."""

    source: list[str]
    """Subwords of the source, EOS last: the keys of `cross`."""
    target: list[str]
    """What the decoder reads, BOS first: its queries. Query i predicts subword i + 1, the last one EOS."""
    weights: dict[str, Float[Tensor, "N h query key"]]
    """By kind."""


@torch.no_grad()
def weights_of(model: Transformer, source: list[int], target: list[int]) -> dict[str, Tensor]:
    """Every layer's and head's weights by kind; `source` ends in EOS, `target` has neither BOS nor EOS."""
    device = model.embedding.table.device
    found: dict[str, list[Tensor]] = {kind: [] for kind in KINDS}

    def watch(kind: str) -> Any:
        def look(module: MultiHeadAttention, inputs: tuple[Tensor, Tensor, Tensor]) -> None:
            x, memory, mask = inputs
            Q, K = (part.unflatten(2, (module.h, -1)).transpose(1, 2) for part in (module.W_Q(x), module.W_K(memory)))
            scores = (Q / math.sqrt(Q.shape[-1])) @ K.transpose(2, 3)
            found[kind].append(scores.masked_fill(~mask, -math.inf).softmax(dim=-1)[0].float().cpu())

        return look

    watched = [(layer.self_attention, "encoder") for layer in model.encoder]
    watched += [(layer.self_attention, "decoder") for layer in model.decoder]
    watched += [(layer.cross_attention, "cross") for layer in model.decoder]
    handles = [cast("MultiHeadAttention", module).register_forward_pre_hook(watch(kind)) for module, kind in watched]
    try:
        model(padded([source], device), padded([[BOS, *target]], device))
    finally:
        for handle in handles:
            handle.remove()
    return {kind: torch.stack(layers) for kind, layers in found.items()}


def attention(models: Models, source: str, target: str) -> Attention:
    """The first model's attention for a pair of raw lines; raises InputError where the source has no text."""
    ids = models.encode(source)
    if not ids:
        raise InputError("the source has no text, so there is nothing to look at: give a sentence")
    written = [row for row in models.encode_target(target) if row != EOS]
    names = models.target_subwords.symbols
    return Attention(models.subwords.symbols(ids), names([BOS, *written]), weights_of(models.members[0], ids, written))


def alignment(
    members: Sequence[Transformer], source: list[int], target: list[int]
) -> Float[Tensor, "target_and_eos source"]:
    """Where the last layer looks in the source at each subword of the target and at EOS: mean of heads and models."""
    return torch.stack([weights_of(model, source, target)["cross"][-1].mean(0) for model in members]).mean(0)


def save(found: Attention, folder: Path) -> list[Path]:
    """Write attention.npz and the pictures into a new folder; returns them, pictures as SVG."""
    layer = max(0, found.weights["encoder"].shape[0] - 2)
    with writing(folder) as temporary:
        temporary.mkdir()
        with (temporary / "attention.npz").open("wb") as file:
            np.savez_compressed(
                file, source=np.array(found.source), target=np.array(found.target),
                allow_pickle=False, **{kind: weights.numpy() for kind, weights in found.weights.items()},
            )  # fmt: skip
        for kind in KINDS:
            (temporary / f"{kind}-all-heads.svg").write_bytes(overview(found, kind))
            (temporary / f"{kind}-layer-{layer + 1}.svg").write_bytes(lines(found, kind, layer))
    return sorted(folder.iterdir())


def _sides(found: Attention, kind: str) -> tuple[list[str], list[str]]:
    """Names of queries and keys."""
    return {
        "encoder": (found.source, found.source),
        "decoder": (found.target, found.target),
        "cross": (found.target, found.source),
    }[kind]


def _svg(canvas: Any) -> bytes:
    import io

    content = io.BytesIO()
    canvas.savefig(content, format="svg", metadata={"Date": None})
    return content.getvalue()


def overview(found: Attention, kind: str) -> bytes:
    """Every layer (rows) and head (columns) as a picture of its matrix, as SVG; equal input gives equal bytes."""
    import matplotlib
    from matplotlib.figure import Figure

    weights = found.weights[kind]
    layers, heads = weights.shape[:2]
    with matplotlib.rc_context({"svg.hashsalt": kind, "font.size": 7}):
        canvas = Figure(figsize=(1.3 * heads + 0.5, 1.3 * layers + 0.4), layout="constrained")
        for layer, row in enumerate(canvas.subplots(layers, heads, squeeze=False)):
            for head, axes in enumerate(row):
                axes.imshow(weights[layer, head].numpy(), cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
                axes.set(xticks=[], yticks=[], title=f"layer {layer + 1}, head {head + 1}")
        return _svg(canvas)


def lines(found: Attention, kind: str, layer: int) -> bytes:
    """One layer as the paper's figures 3 to 5: queries left, keys right, a line's strength the weight, a colour a head.

    Equal input gives equal bytes.
    """
    import matplotlib
    from matplotlib.figure import Figure

    queries, keys = _sides(found, kind)
    weights = found.weights[kind][layer]
    heads = weights.shape[0]
    tall = max(len(queries), len(keys))
    with matplotlib.rc_context({"svg.hashsalt": kind, "svg.fonttype": "path", "font.size": 8}):
        canvas = Figure(figsize=(2.4 * heads, 0.22 * tall + 0.5), layout="constrained")
        colours = matplotlib.colormaps["tab10"]
        for head, axes in enumerate(canvas.subplots(1, heads, squeeze=False)[0]):
            axes.set(xlim=(-0.9, 1.9), ylim=(tall - 0.5, -0.5), title=f"head {head + 1}")
            axes.axis("off")
            for side, (names, where) in enumerate(((queries, "right"), (keys, "left"))):
                for place, name in enumerate(names):
                    # A $ would begin a formula.
                    axes.text(side * 1.06 - 0.03, place, name.replace("$", r"\$"), ha=where, va="center", fontsize=7)
            for query in range(len(queries)):
                for key in range(len(keys)):
                    weight = float(weights[head, query, key])
                    if weight > 0.02:
                        axes.plot((0, 1), (query, key), color=colours(head % 10), alpha=weight, linewidth=1.5)
        return _svg(canvas)


def look(folder: Path, source: str, target: str | None, output: Path) -> list[Path]:
    """Write a model's attention for a pair of raw lines into `output`; returns the files.

    Without a target the model's own translation takes its place. Raises InputError where the source has no text.
    """
    models = Models([folder])
    if target is None:
        target = next(Translator(models).translate([source]))
    return save(attention(models, source, target), output)
