"""Input that a function refuses."""

from collections.abc import Callable
from typing import Any

import pytest

from nmt.errors import InputError


def check_refusal(why: str, call: Callable[..., object], /, *given: Any, **named: Any) -> str:
    """The one line with which a call is refused; the pattern `why` is found in it."""
    with pytest.raises(InputError, match=why or None) as caught:
        call(*given, **named)
    (sentence,) = str(caught.value).splitlines()
    return sentence
