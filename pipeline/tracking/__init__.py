"""MLflow brought to what the records of runs say; its model registry, and models served from it."""
