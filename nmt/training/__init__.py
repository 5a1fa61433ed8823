"""Training, section 5: batches, the update, its state on disk, several processes."""
