"""The commands of `wmt`: models, catalogs, runs, plan, ablation, servers."""
