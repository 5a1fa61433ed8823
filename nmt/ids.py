"""The ids that every vocabulary has."""

PAD, BOS, EOS, UNK = range(4)  # padding, begin and end of a sentence, and text without a subword
