"""Trained models in use: `wmt translate` on files and streams, exports to CTranslate2, transformers and Argos."""
