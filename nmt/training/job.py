"""The description of a training: model, training settings and corpus."""

from __future__ import annotations

from nmt.config import ModelSettings, Settings, TrainingSettings


class Job(Settings):
    """A model, its training settings and the corpus to train it on."""

    model: ModelSettings
    training: TrainingSettings
    vocabulary: int
    """Rows of the source's embedding, by default of the target's too."""
    target_vocabulary: int | None = None
    corpus: str
    """The folder of the binned corpus."""

    @property
    def output_rows(self) -> int:
        """Rows of the pre-softmax product."""
        return self.target_vocabulary or self.vocabulary
