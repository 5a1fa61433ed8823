"""Score translations: BLEU with sacreBLEU and the paper's way, names of test sets, forced scoring."""
