"""infra/compose.yaml as Docker reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml
from clones import ROOT

VARIABLE = re.compile(r"\$\$|\$\{(?P<name>\w+)(?::(?P<how>[-?])(?P<word>(?:\$\{[^}]*\}|[^}])*))?\}")


def read() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "infra/compose.yaml").read_text(encoding="utf-8"))


def interpolated(content: Any, values: Mapping[str, str]) -> Any:
    """`content` with the variables of the compose file replaced as Docker does it."""
    if isinstance(content, Mapping):
        return {key: interpolated(value, values) for key, value in content.items()}
    if isinstance(content, list):
        return [interpolated(value, values) for value in content]
    return VARIABLE.sub(lambda found: _value(found, values), content) if isinstance(content, str) else content


def _value(found: re.Match[str], values: Mapping[str, str]) -> str:
    if found["name"] is None:
        return "$"
    value = values.get(found["name"], "")
    if not value and found["how"] == "?":
        raise ValueError(f"{found['name']} is not set: {found['word']}")
    return value or str(interpolated(found["word"] or "", values))
