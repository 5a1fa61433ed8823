"""Named tensors on disk as safetensors, which need no unpickling."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from nmt.errors import InputError

WEIGHTS = "model.safetensors"  # the file name of a model's weights in its folder


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors to a safetensors file. Not by `save_file`: it hides the number of an error, and who may read."""
    try:
        path.write_bytes(save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}))
    except OSError as error:
        error.filename = str(path)  # A failed `write` has none.
        raise


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file; raise InputError if it is missing or damaged."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} cannot be read as weights ({error}): make it again") from error


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the sha256 of names, dtypes, shapes and bytes of tensors, in hexadecimal, whatever their order."""

    def of_bytes(name: str) -> list[object]:
        tensor = tensors[name].detach().cpu().contiguous()
        content = hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy().data).hexdigest()
        return [name, str(tensor.dtype), list(tensor.shape), content]

    # hashlib releases Python's lock, so threads hash several tensors at a time.
    with ThreadPoolExecutor() as threads:
        hashes = list(threads.map(of_bytes, sorted(tensors)))
    return hashlib.sha256(json.dumps(hashes).encode()).hexdigest()
