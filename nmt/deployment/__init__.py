"""Trained models in use: files and streams translated by `wmt translate`, models exported to CTranslate2."""
