"""Section 6.3: constituency trees, their linearisation and back, and EVALB."""
