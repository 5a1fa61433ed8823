"""Define and merge the settings of a run: schema, rows of the paper's tables, catalogs, the stage graph.

What several packages ask of paths, locks, git and the machine is here, too.
"""
