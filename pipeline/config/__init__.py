"""The settings of a whole run: schema, rows of the paper's tables, catalogs of corpora."""
