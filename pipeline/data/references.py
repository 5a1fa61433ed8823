"""What the validation and the test set of a run are, by their references."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nmt.evaluation.known_sets import identity
from nmt.task import task_of
from nmt.text.parallel_text import read_lines
from pipeline.config.paths import RAW


def identities(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the name of each set, if it is a known one, else the sha256 of its references, by a key beside its score.

    `data`: the section of the resolved configuration. A set that is not here has no key.
    """
    target, found = data["target"], {}
    for role, prefix in (("valid", "valid_"), ("test", "")):
        path = RAW / f"{role}.{data[role]['name']}.{target}"
        if path.exists():
            found[f"{prefix}{task_of(target).key}_references"] = identity(
                list(read_lines(path)), target, data["source"]
            )
    return found
