"""Evaluation: BLEU in its two ways, the names of test sets, forced scoring."""
