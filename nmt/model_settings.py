"""The settings of the model, apart from nmt.model, which imports torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from nmt.schema import Few, Settings, Size

DropoutProbability = Annotated[float, Field(ge=0.0, le=0.99)]


class ModelSettings(Settings):
    """The Transformer of section 3, in the symbols of Table 3."""

    N: Few
    d_model: Annotated[Size, Field(ge=2, multiple_of=2)]
    d_ff: Size
    h: Few
    d_k: Size
    d_v: Size
    P_drop: DropoutProbability
    """Residual dropout: on the output of every sub-layer and on the sums of embeddings and positions (5.4)."""
    attention_dropout: DropoutProbability
    """On the attention weights. For translation the paper and its code of June 2017 have none."""
    relu_dropout: DropoutProbability
    """Inside the feed-forward network. The paper and its code of June 2017 have none."""
    positions: Literal["sinusoidal", "learned"]
    position_layout: Literal["interleaved", "halves"]
    """Sines and cosines alternate (the paper), or all sines come first (Marian; tensor2tensor's exponents differ)."""
    max_positions: Size
    """Rows of the table of learned positions; sinusoids have no limit."""
    sharing: Literal["all", "output", "none"] = "all"
    """One table for source, target and pre-softmax product (3.4), one for the last two, or three tables."""
    projection_biases: bool
    """Biases on the attention's projections: the printed parameter counts need them, the equations show none."""
    initialisation: Literal["fairseq", "tensor2tensor", "glorot"]
    """The program whose first weights to draw; glorot: each matrix by itself, Glorot uniform."""


FREE = ("P_drop", "attention_dropout", "relu_dropout", "initialisation")
"""Settings of a model that need not be those of the model that it starts from."""
