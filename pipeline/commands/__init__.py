"""What `wmt` runs beside the stages: plan, rows, states, join, ablation."""
