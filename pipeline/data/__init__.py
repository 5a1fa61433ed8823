"""Get corpora onto disk: downloads, archives, plain text, treebanks, the user's own files."""
