"""Updates as packed batches of few shapes, which a GPU trains on as recorded CUDA graphs."""
