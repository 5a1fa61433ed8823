"""Start training with torchrun and show its progress."""
