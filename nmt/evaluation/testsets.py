"""The names of the WMT news sets, so that nobody takes one for another.

newstest2014 has 3,003 lines (`wmt14/full` in sacreBLEU), and that is what papers report. sacreBLEU's `wmt14` is a
filtered set: 2,737 lines of it for English-German, in the order of the full set.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

_NAMES = {
    "ae5d110486bc33d7175e9e28c7d0051eb3e5fcd2166dd93371089852c091a20e": "newstest2014/full, de (sacreBLEU: wmt14/full)",
    "9ed99a750c7818b7bbc62230ed0b1a1673325989bdcf9f81a7d7e67bde8ca473": "newstest2014/full, fr (sacreBLEU: wmt14/full)",
    "48fad9e043d7e8e89c06fa8203283501166e4f4a059f6cf08d9a4d6674a19fd8": "newstest2014/filtered, de (sacreBLEU: wmt14)",
    "026f4fd1fe147ece7eb201ef46063482990554d342e05db9480b1258d71d3d4f": "newstest2013, de (sacreBLEU: wmt13)",
    "d197faafd03242c13f4589cc4c8391a8d33da7be08feab5b8759593ee04fda2e": "newstest2013, fr (sacreBLEU: wmt13)",
}
"""By the sha256 of the references, a line each, every run of white space one blank."""


def name_of(references: Sequence[str]) -> str | None:
    """What a reference text is, if it is one that is known: `newstest2014/full (sacreBLEU: wmt14/full)`."""
    # As sacreBLEU cleans what it prints (`--echo ref`): the originals hold no-break spaces, and its copies do not.
    lines = (re.sub(r"\s+", " ", line.strip()) for line in references)
    return _NAMES.get(hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest())
