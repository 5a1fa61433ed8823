"""MLflow: what a run logs, how it is sent, the model registry and serving."""
