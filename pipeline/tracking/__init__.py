"""Log runs to MLflow, register their models and serve them."""
