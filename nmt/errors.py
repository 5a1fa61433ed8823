"""The errors that a user can cause."""

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from reprlib import Repr

from pydantic import ValidationError

_SHORT = Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 1, 200, 200


def printable(text: str) -> str:
    """Return text from outside with its control characters escaped: a terminal would obey them."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", lambda match: ascii(match[0])[1:-1], text)


def tell(message: str) -> None:
    """Print a message on standard error, as `printable` text and at once."""
    print(printable(message), file=sys.stderr, flush=True)


class InputError(ValueError):
    """An error that a user can cause and correct; the message names what, where, the rule and the remedy."""


def explain(error: ValidationError) -> str:
    """Return the first problem in a sentence: the key, its value (cut where it is long) and the rule."""
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"] if part != "[key]")
    rule = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        return f"`{key}` is missing: add it"
    if not key or isinstance(first["input"], Mapping) or hasattr(first["input"], "model_dump"):
        # A rule about several keys names them itself.
        return f"{key}: {rule}" if key else rule
    return f"{key} is {_SHORT.repr(first['input'])}; {rule[0].lower()}{rule[1:]}"


@contextmanager
def explained(before: str, after: str) -> Iterator[None]:
    """Raise InputError in place of pydantic's error: its first problem, between these two parts of a sentence."""
    try:
        yield
    except ValidationError as error:
        raise InputError(f"{before}{explain(error)}{after}") from error
