"""Shapes in signatures: jaxtyping's annotations, checked during tests; plain tensors if it is not installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
else:
    try:
        from jaxtyping import Bool, Float, Int
    except ModuleNotFoundError:

        class _Tensor:
            """Make `Float[Tensor, "batch length"]` mean `Tensor`, since training does not require jaxtyping."""

            def __class_getitem__(cls, item):
                return item[0]

        Bool = Float = Int = _Tensor

__all__ = ["Bool", "Float", "Int"]
