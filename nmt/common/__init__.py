"""Shared by all packages of nmt: atomic files, tensors on disk, shapes in signatures, child processes."""
