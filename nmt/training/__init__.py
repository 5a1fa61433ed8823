"""Train the model, section 5: batches, shards, updates, checkpoints, several processes."""
