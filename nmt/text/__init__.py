"""Prepare text: parallel files, Moses' tokenizer, byte-pair encoding and word pieces."""
