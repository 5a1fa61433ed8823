"""The commands of `wmt`: model folders, catalogs, plan, rows, states, join, ablation."""
