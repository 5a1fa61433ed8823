"""Commands for people beside the stages: plan, ablation, states, further machines."""
