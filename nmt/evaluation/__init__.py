"""Score translations and trees: BLEU with sacreBLEU and the paper's way, F1, names of test sets, forced scoring."""
