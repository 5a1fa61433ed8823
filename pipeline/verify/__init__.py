"""Check a run: train parts of it again, and compare every step from the corpus to the score with its certificate."""
