"""The learning rate, Eq. 3 of section 5.3."""

from __future__ import annotations

import math

from nmt.training.settings import TrainingSettings


def learning_rate(update: int, d_model: int, settings: TrainingSettings) -> float:
    """Return d_model^-0.5 * min(update^-0.5, update * warmup_steps^-1.5), times learning_rate_scale; update >= 1."""
    if settings.arithmetic == "portable":  # Powers differ between libraries, roots do not.
        warmup = update / (settings.warmup_steps * math.sqrt(settings.warmup_steps))
        return settings.learning_rate_scale * (min(1 / math.sqrt(update), warmup) / math.sqrt(d_model))
    rate: float = d_model**-0.5 * min(update**-0.5, update * settings.warmup_steps**-1.5)
    return settings.learning_rate_scale * rate
