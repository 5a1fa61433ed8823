"""The options of a translation. Imports no torch, so that `wmt --help` answers at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nmt.schema import Precision

WINDOW = 2048  # lines sorted by length together; memory grows with this, not with the input
LONGEST = 256  # the most subwords of a line that is translated whole: the paper's code trained on no longer line
Split = Literal["long", "sentences"]
"""The lines that are split into sentences: those of more subwords than `longest`, or all."""
Quantization = Literal["int8", "int8_float32", "int16", "float16", "bfloat16", "float32"]


@dataclass(frozen=True, kw_only=True)
class TranslationOptions:
    """The options of `wmt translate` and `wmt parse`. None leaves a setting to the model folder."""

    command: str  # which of the two, for messages
    models: Sequence[Path]  # one, or the members of an ensemble
    input: Path | None
    output: Path | None
    beam: int | None
    alpha: float | None
    max_extra: int | None
    stop: str | None
    nbest: int
    longest: int
    split: Split
    json: bool
    device: Literal["cpu", "cuda"] | None
    precision: Precision | None
    quantization: Literal["int8"] | None
    batch_tokens: int | None
    window: int
