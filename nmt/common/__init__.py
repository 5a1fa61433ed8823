"""Write files atomically, store named tensors, annotate shapes, end child processes with their parent."""
