"""From raw WMT14 text to a scored Transformer: one module a stage, run as `python -m pipeline <stage>`."""
