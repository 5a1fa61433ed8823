"""What all settings are: frozen and checked, with no unknown keys; and the kinds of numbers in them.

The settings themselves stand beside what they configure, so that a change of one reruns few stages of the pipeline.
Devices, processes and servers are no settings: they belong to the machine.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

Precision = Literal["float32", "bfloat16"]  # of matrix products


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_booleans(cls, value: Any, info: Any) -> Any:
        """Pydantic takes them as 1 and 0."""
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError("It should not be true or false")
        return value

    def misfits(self, parent: Settings, section: str, free: Container[str] = ()) -> list[str]:
        """Return the settings that are not those of `parent`, with both values, but for the `free` ones."""
        both = ((name, value, getattr(parent, name)) for name, value in self if name not in free)
        return [
            f"{section}.{name} is {value}, the parent's is {other}" for name, value, other in both if value != other
        ]


# The upper bounds lie far above anything in the field: what exceeds them is a typing error.
Count = Annotated[int, Field(ge=1, le=100_000_000)]
Size = Annotated[int, Field(ge=1, le=1_000_000)]  # the width of a layer, the rows of a table
Few = Annotated[int, Field(ge=1, le=1024)]
PowerOfTwo = Literal[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]

TREE = "tree"  # the target of pairs whose texts are treebanks: both sides are made of one file
LANGUAGE = r"[a-z]{2,3}(_[A-Z][a-z]{3})?"  # codes of ISO 639, with a script where it matters, as `sr_Latn`
