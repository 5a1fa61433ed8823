"""Score translations and trees: BLEU with sacreBLEU and the paper's way, EVALB, names of test sets, forced scoring."""
