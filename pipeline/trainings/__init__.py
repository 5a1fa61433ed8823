"""A training: identity, folder, start, outcome and outputs; launch by torchrun, progress, copy in a store."""
