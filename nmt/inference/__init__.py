"""Search with trained models, section 6.1: model folders, decoder, beam search, attention maps."""
