"""The options of a translation. Imports no torch, so that `wmt --help` answers at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nmt.config import Precision

WINDOW = 2048
"""Lines sorted by length together; memory grows with this, not with the input."""
LONGEST = 256
"""The most subwords of a line that is translated whole: the paper's code trained on no longer ones."""
EngineName = Literal["torch", "ctranslate2"]
LongLines = Literal["split", "refuse"]
Quantization = Literal["int8", "int8_float32", "int16", "float16", "bfloat16", "float32"]


@dataclass(frozen=True, kw_only=True)
class TranslationOptions:
    """The options of `wmt translate` and `wmt parse`; None leaves a setting to the model folder."""

    command: str
    """Which of the two: begins its messages."""
    model: Path
    ensemble: Sequence[Path]
    """More models of the same vocabulary."""
    pair: str | None
    """Refuse a model of another pair."""
    input: Path | None
    """None: standard input."""
    output: Path | None
    """None: standard output."""
    resume: bool
    """Continue an interrupted output."""
    beam: int | None
    alpha: float | None
    max_extra: int | None
    stop: str | None
    nbest: int
    sample: bool
    """Draw translations at random instead of searching, by `temperature`, `top_k` and `seed`."""
    temperature: float
    top_k: int
    seed: int
    longest: int
    long: LongLines | None
    """None: split, but trees are refused."""
    json: bool
    engine: EngineName
    device: str | None
    precision: Precision
    quantization: Literal["int8"] | None
    """int8: 8-bit weights, on a CPU."""
    batch_tokens: int
    """Source positions of a batch, all beams counted."""
    window: int
