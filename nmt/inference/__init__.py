"""Translate with trained models, section 6.1: model folders, beam search, sampling, attention maps, CTranslate2."""
