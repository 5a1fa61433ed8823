"""The errors that a user can cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError


class InputError(ValueError):
    """An error that a user can cause and correct; the message names what, where, the rule and the remedy."""


def first_error(error: ValidationError) -> tuple[str, Any, str]:
    """Return the first problem of pydantic's error: the key, its value, and the rule as `should be ...`."""
    first = error.errors()[0]
    return (
        ".".join(map(str, first["loc"])),
        first["input"],
        first["msg"].removeprefix("Input ").removeprefix("Value error, "),
    )
