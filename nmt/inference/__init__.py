"""Translation, section 6.1: decoding, search, sampling, opened model folders and engines."""
