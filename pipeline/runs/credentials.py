"""Credentials in URIs: they are neither printed nor written to disk."""

from __future__ import annotations

import re

_USER_INFO = re.compile(r"://(?:[^\s/?#]*|[^\s/:@]*:[^\s@]*)@")
"""Before the host. The second form: database URIs may hold a password with an unescaped slash."""
_QUERY = re.compile(r"([?&;][^\s=&;#]*(?:password|passwd|pwd|token|secret|key)[^\s=&;#]*=)[^\s&;#]*", re.IGNORECASE)


def masked(text: str) -> str:
    """Replace user names and passwords by `***` in every URI of a text: the URI itself, or a message that names it."""
    return _QUERY.sub(r"\1***", _USER_INFO.sub("://***@", text))
