"""Shapes in signatures: jaxtyping's annotations, checked while tests run; plain tensors where it is not installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
else:
    try:
        from jaxtyping import Bool, Float, Int
    except ModuleNotFoundError:

        class _Tensor:
            """`Float[Tensor, "batch length"]` is `Tensor`: training needs no jaxtyping."""

            def __class_getitem__(cls, item):
                return item[0]

        Bool = Float = Int = _Tensor

__all__ = ["Bool", "Float", "Int"]
