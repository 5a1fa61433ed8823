"""Prepare text: parallel files, Moses' tokenizer, byte-pair encoding, word pieces."""
