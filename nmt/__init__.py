"""The Transformer of "Attention Is All You Need" and its training, as a library."""
