"""torch.compile for the layers: on GPUs it fuses the operations between matrix products."""

from __future__ import annotations

import os
import sys
from typing import cast

import torch
from torch import nn

from nmt.config import InputError
from nmt.model import Transformer


def compilation_requested(device: torch.device) -> bool:
    """Return whether to compile: `$NMT_COMPILE`, which is 1 or 0.

    The default is 1 on GPUs, and 0 on CPUs, where compilation gains little and is slow to start. If the compiler does
    not work (it needs a C++ compiler), print a line and return False.
    """
    requested = os.environ.get("NMT_COMPILE", "1" if device.type == "cuda" else "0")
    if requested not in {"0", "1"}:
        raise InputError(f"NMT_COMPILE is {requested!r}: it must be 1 or 0, or unset")
    return requested == "1" and _works(device)


def compile_layers(model: Transformer) -> None:
    """Compile every layer of the model in place, for any batch size and length."""
    for layer in (*model.encoder, *model.decoder):
        # Layers of a stack share their code, so two are compiled, not 2N. Dynamic sizes avoid a compilation for every
        # new length.
        cast("nn.Module", layer).compile(dynamic=True)


def _works(device: torch.device) -> bool:
    """Return whether a small function can be compiled, so that a failure comes before the first update."""
    try:
        torch.compile(lambda x: x.sin() + x)(torch.ones(8, device=device))
    except Exception as error:
        # torch raises errors of many types if a tool is missing. None of them prevents training.
        reason = str(error).strip().split("\n")[0]
        print(f"torch.compile does not work here ({reason}): training continues, but slower", file=sys.stderr)
        return False
    return True
