"""The description of a training: model, training settings and corpus."""

from __future__ import annotations

from nmt.config import ModelSettings, Settings, TrainingSettings


class Job(Settings):
    """A model, its training settings and the corpus to train it on."""

    model: ModelSettings
    training: TrainingSettings
    vocabulary: int
    corpus: str
    """The folder of the binned corpus."""
