"""Named tensors on disk as safetensors, which need no unpickling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from nmt.config import InputError

WEIGHTS = "model.safetensors"
"""The file name of a model's weights in its folder."""


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors to a safetensors file; raise OSError if that fails, for example on a full disk."""
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        raise OSError(f"{path} could not be written: {error}") from error


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file; raise InputError if it is missing or damaged."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} cannot be read as weights ({error}): make it again") from error


def shape_text(shape: Sequence[int] | None) -> str:
    """Format a shape for a message."""
    return "none" if shape is None else str(list(shape))
