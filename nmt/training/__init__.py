"""Train the model, section 5: batches, updates, checkpoints, micro-batches, several processes."""
