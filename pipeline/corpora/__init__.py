"""Get corpora onto disk: downloads, archives, plain text, parallel work in blocks, the user's own files."""
