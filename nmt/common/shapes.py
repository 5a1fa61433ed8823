"""Shapes in signatures: jaxtyping's annotations, checked during tests, which alone need it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
else:
    try:
        from jaxtyping import Bool, Float, Int
    except ModuleNotFoundError:  # Annotations are evaluated in tests alone.
        Bool = Float = Int = None

__all__ = ["Bool", "Float", "Int"]
