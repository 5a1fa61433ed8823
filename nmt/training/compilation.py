"""torch.compile where it pays: on GPUs, where it fuses what stands between the matrix products."""

from __future__ import annotations

import os
import sys
from typing import cast

import torch
from torch import nn

from nmt.config import InputError
from nmt.model import Transformer


def compile_layers(model: Transformer, device: torch.device) -> bool:
    """Compile every layer of the model in place, for sentences of any number and length; says whether it did.

    `$NMT_COMPILE` says 1 or 0; the default is 1 on GPUs, and 0 on CPUs, where it gains little and starts slowly. Where
    the compiler does not work (it needs a C++ compiler), training goes on without, and says so in a line.
    """
    wanted = os.environ.get("NMT_COMPILE", "1" if device.type == "cuda" else "0")
    if wanted not in {"0", "1"}:
        raise InputError(f"NMT_COMPILE is {wanted!r}: it must be 1 or 0, or unset")
    if wanted == "0" or not _works(device):
        return False
    for layer in (*model.encoder, *model.decoder):
        # Layers of a stack share their code, so two are compiled, not 2N; sizes are symbols from the start, so that
        # not every new length is compiled anew.
        cast("nn.Module", layer).compile(dynamic=True)
    return True


def _works(device: torch.device) -> bool:
    """Whether a small function can be compiled: tried here, and not in the middle of the first update."""
    try:
        torch.compile(lambda x: x.sin() + x)(torch.ones(8, device=device))
    except Exception as error:
        # torch raises errors of many kinds where a tool is missing. None of them is a reason not to train.
        reason = str(error).strip().split("\n")[0]
        print(f"torch.compile does not work here ({reason}): training goes on without it, more slowly", file=sys.stderr)
        return False
    return True
