"""Settings of a training."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from nmt.model_settings import ModelSettings
from nmt.schema import Count, Few, PowerOfTwo, Precision, Probability, Settings


class StartSettings(Settings):
    """The parent: the trained model whose weights a training starts from."""

    folder: str
    """A model folder, or a run's folder (its `models/average` is taken); absolute, or relative to the repository."""
    weights: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """The sha256 of its model.safetensors, as in its run's certificate; `resolve` fills it in."""

    @model_validator(mode="before")
    @classmethod
    def _folder_alone(cls, value: Any) -> Any:
        return {"folder": value} if isinstance(value, str) else value


class TrainingSettings(Settings):
    """The training regime of section 5."""

    updates: Count
    tokens: Count
    """About this many source and this many target tokens per update, over all devices (5.1)."""
    shards: PowerOfTwo
    """Parts of an update, each of which goes through the model by itself. The number of processes must divide it. GPUs
    without `deterministic` take those of a process as one part; else that number changes no weight."""
    warmup_steps: Count
    learning_rate_scale: Annotated[float, Field(gt=0.0)]
    """Multiplies Eq. 3; the paper's is 1."""
    beta1: Probability
    beta2: Probability
    epsilon: Annotated[float, Field(gt=0.0)]
    eps_ls: Probability
    r_drop: Annotated[float, Field(ge=0.0)] = 0.0
    """The weight alpha of R-Drop (arXiv:2106.14448, Eq. 4): each pair goes through the model twice, with other dropout,
    and the two distributions are made alike. An update takes about twice the time; 0: once."""
    ema_decay: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """The model is an exponential moving average of the weights that are trained: after each update it keeps this share
    of itself, in the first updates less. Validations and checkpoints are of it. 0: the trained weights themselves."""
    precision: Precision
    """Of matrix products; weights and optimizer state are always float32."""
    arithmetic: Literal["ordinary", "portable"] = "ordinary"
    """portable: the weights follow from settings and text alone, on any CPU, with any number of threads, any torch."""
    deterministic: bool = False
    """On GPUs, use kernels that add in a fixed order, so that another run gives the same weights; on CPUs all do."""
    seed: Annotated[int, Field(ge=0)]
    validate_every: Count
    """Updates between two measurements of the validation perplexity."""
    patience: Count | None = None
    """Training ends after so many of these without a better perplexity; null: after `updates` alone."""
    validation_sample: Annotated[int, Field(ge=0, le=4096)] = 0
    """Validation pairs, evenly spaced, that are translated greedily at every validation: a curve of BLEU and chrF in
    MLflow. Changes no weight."""
    checkpoint_every: Count
    """Updates between two checkpoints for averaging (6.1: ten minutes at the paper's step time)."""
    keep_checkpoints: Few
    """How many checkpoints for averaging are kept."""
    resume_minutes: Annotated[float, Field(gt=0.0)]
    """Minutes between two saved states for resuming, which are saved at reports alone; changes no result."""
    verify_every: Count | None = None
    """Updates between two links of the chain of hashes, which `wmt verify` compares; checkpoints have a link anyway."""
    keep_states: Annotated[int, Field(ge=0, le=1024)] = 0
    """How many states to keep, evenly spaced, that `wmt verify` trains from. Changes no result."""
    start_from: StartSettings | None = None
    """The model whose weights and subwords to start with, optimizer and schedule afresh; null: random weights."""

    @model_validator(mode="after")
    def _fits_portable_arithmetic(self) -> TrainingSettings:
        if self.arithmetic == "portable" and (self.precision != "float32" or self.r_drop or self.ema_decay):
            needed = "training.precision float32, training.r_drop 0 and training.ema_decay 0"
            raise ValueError(f"training.arithmetic portable needs {needed}")
        return self

    @property
    def passes(self) -> int:
        """How often a pair goes through the model in an update."""
        return 2 if self.r_drop else 1


class Job(Settings):
    model: ModelSettings
    training: TrainingSettings
    vocabulary: int
    """Rows of the source's embedding, by default of the target's too."""
    target_vocabulary: int | None = None
    corpus: str
    """The folder of the binned corpus."""

    @property
    def output_rows(self) -> int:
        return self.target_vocabulary or self.vocabulary
