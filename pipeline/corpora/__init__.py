"""Corpora: downloads, archives, plain text, work by blocks, the user's own files."""
