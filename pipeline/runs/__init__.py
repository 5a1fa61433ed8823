"""Runs in copies of the repository, and the supervisor of their processes."""
