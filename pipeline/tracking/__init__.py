"""MLflow: one run for each configuration and training, followed while it trains and completed from its results.

The model registry and the model as it is served are here, too.
"""
