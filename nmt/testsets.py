"""The names of the WMT news sets, so that nobody takes one for another.

newstest2014 has 3,003 lines (`wmt14/full` in sacreBLEU), and that is what papers report. sacreBLEU's `wmt14` is a
filtered set: 2,737 lines of it for English-German, in the order of the full set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

_NAMES = {
    "ae5d110486bc33d7175e9e28c7d0051eb3e5fcd2166dd93371089852c091a20e": "newstest2014/full, de (sacreBLEU: wmt14/full)",
    "2bd07dc204f965bf88e90adb6223a8cb850f9bf9840df6af1f4945195936656e": "newstest2014/full, fr (sacreBLEU: wmt14/full)",
    "48fad9e043d7e8e89c06fa8203283501166e4f4a059f6cf08d9a4d6674a19fd8": "newstest2014/filtered, de (sacreBLEU: wmt14)",
    "d7ea35ab91ff3709e03ad9cb6bf5b4f2cc775cd2d72efd5254c4aec5e69663ca": "newstest2013, de (sacreBLEU: wmt13)",
    "909b63be5df3eb8c13e1d5967bf3f0adfdb9f6ed5e638c5bffff563ee2ff7f41": "newstest2013, fr (sacreBLEU: wmt13)",
}
"""By the sha256 of the references, a line each."""


def name_of(references: Sequence[str]) -> str | None:
    """What a reference text is, if it is one that is known: `newstest2014/full (sacreBLEU: wmt14/full)`."""
    return _NAMES.get(hashlib.sha256("".join(f"{line}\n" for line in references).encode()).hexdigest())
