"""Text: parallel files, Moses, byte-pair encoding and word pieces."""
