"""Hold the stages of dvc.yaml: one module each, with one function `run`."""
