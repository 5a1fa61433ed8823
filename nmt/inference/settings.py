"""Settings of the search."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from nmt.errors import InputError, explained
from nmt.schema import Few, Settings


class SearchSettings(Settings):
    """Beam search with the length penalty of Wu et al. 2016; section 6.1."""

    beam: Few
    alpha: Annotated[float, Field(ge=0.0, le=10.0)]
    """The exponent of the length penalty, which overflows far above 10; the paper's is 0.6."""
    max_extra: Annotated[int, Field(ge=0, le=100_000)]
    """A translation has at most the source's subwords plus this many."""
    stop: Literal["exact", "tensor2tensor"]
    """exact: the search ends when no unfinished hypothesis can be among the `nbest` best. tensor2tensor: when none can
    beat the worst finished one, however few are finished."""

    def changed(self, changes: Mapping[str, Any]) -> "SearchSettings":
        """Return these settings with some values changed; raise InputError for a wrong one."""
        with explained("the search's ", ": change it"):
            return SearchSettings.model_validate({**self.model_dump(), **changes})

    def check_nbest(self, nbest: int) -> None:
        """Raise InputError if a beam search cannot give `nbest` translations of a sentence."""
        if not 1 <= nbest <= self.beam:
            raise InputError(f"nbest is {nbest}: it must lie between 1 and the beam, {self.beam}")
