"""Get corpora onto disk: downloads, archives, the user's files, the parent model, blocks of text over an executor."""
