"""Where the tests of tracking work."""

from tracked import root, store

__all__ = ["root", "store"]
