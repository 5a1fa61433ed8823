from tracked import root, store

__all__ = ["root", "store"]
