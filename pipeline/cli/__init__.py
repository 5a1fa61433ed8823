"""The commands of `wmt`: models, catalogs, runs, trainings, plan, ablation, servers."""
