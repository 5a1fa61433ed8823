"""Run the stages from raw WMT14 text to a scored Transformer: `python -m pipeline STAGE`."""
