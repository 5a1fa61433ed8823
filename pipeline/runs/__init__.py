"""A run: its record on disk, its copy of the repository, and the processes that work for it."""
