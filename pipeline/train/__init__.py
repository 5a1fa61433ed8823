"""Start training with torchrun, show its progress, and copy its states to a store."""
