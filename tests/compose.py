"""infra/compose.yaml as Docker reads it."""

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
    return VARIABLE.sub(lambda match: _value(match, values), content) if isinstance(content, str) else content


def _value(match: re.Match[str], values: Mapping[str, str]) -> str:
    if match["name"] is None:
        return "$"
    value = values.get(match["name"], "")
    if not value and match["how"] == "?":
        raise ValueError(f"{match['name']} is not set: {match['word']}")
    return value or str(interpolated(match["word"] or "", values))
