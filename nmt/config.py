"""Settings of text preparation, model, training and search: frozen and checked; unknown keys are errors.

Each stage of the pipeline reads only the classes that it needs, so that a changed value reruns few stages.
Nothing here is about the machine (devices, paths, servers), except precision, because it changes results.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

Precision = Literal["float32", "bfloat16"]
"""Of matrix products."""

PAD, BOS, EOS, UNK = range(4)
"""The ids of padding, begin and end of a sentence, and text without a subword."""


class InputError(ValueError):
    """An error that a user can cause and correct; the message names what, where, the rule and the remedy."""


def first_error(error: ValidationError) -> tuple[str, Any, str]:
    """Return the first problem of pydantic's error: the key, its value, and the rule as `should be ...`."""
    first = error.errors()[0]
    return (
        ".".join(map(str, first["loc"])),
        first["input"],
        first["msg"].removeprefix("Input ").removeprefix("Value error, "),
    )


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _truth_values_are_no_numbers(cls, value: Any, info: Any) -> Any:
        """Pydantic takes them as 1 and 0."""
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError("It should not be true or false")
        return value

    def misfits(self, parent: Settings, section: str, free: Container[str] = ()) -> list[str]:
        """Return the settings that are not those of `parent`, with both values, but for the `free` ones."""
        both = ((name, value, getattr(parent, name)) for name, value in self if name not in free)
        return [
            f"{section}.{name} is {value}, the parent's is {other}" for name, value, other in both if value != other
        ]


# The upper bounds lie far above anything in the field: what exceeds them is a typing error.
Count = Annotated[int, Field(ge=1, le=100_000_000)]
Size = Annotated[int, Field(ge=1, le=1_000_000)]
"""The width of a layer, the rows of a table."""
Few = Annotated[int, Field(ge=1, le=1024)]
PowerOfTwo = Literal[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
DropoutProbability = Annotated[float, Field(ge=0.0, le=0.99)]
DROPOUT_STEPS = 65_536
"""Dropout on a CPU draws 16-bit integers, which rounds probabilities to multiples of 1 / DROPOUT_STEPS."""


class TokenizerSettings(Settings):
    tokenizer: Literal["moses", "none", "vinyals", "tensor2tensor"]
    """The last two: the source is words separated by spaces, the target trees in this linearisation (6.3)."""
    normalize_punctuation: bool
    aggressive_hyphens: bool
    """Moses' `-a`: `well-known` becomes `well @-@ known`."""


class FilterSettings(Settings):
    """Which tokenised training pairs are dropped. Lengths are counted in tokens."""

    min_tokens: Count
    max_tokens: Count
    max_ratio: Annotated[float, Field(ge=1.0)] | None
    """Tokens of the longer side divided by those of the shorter; null: no limit."""
    drop_identical: bool
    """Drop pairs whose sides are equal; neither the paper's code nor fairseq's recipe does."""


class SubwordSettings(Settings):
    """Joint BPE (Sennrich et al. 2016) or word pieces; section 5.1."""

    kind: Literal["bpe", "wordpieces"]
    merges: Size | None
    """BPE only: the number of merge operations."""
    vocabulary: Size | None
    """The number of subwords to learn, instead of a number of merges."""
    target: Literal["joint", "closed"] = "joint"
    """One vocabulary for both sides, or the source's subwords and all symbols of the target."""
    multiple_of: Size
    """The vocabulary is padded to a multiple of this with rows that no text uses."""

    @model_validator(mode="after")
    def _one_size(self) -> SubwordSettings:
        if (self.merges is None) == (self.vocabulary is None):
            raise ValueError("give either merges or vocabulary, and leave the other null")
        if self.kind == "wordpieces" and self.vocabulary is None:
            raise ValueError("word pieces are sized by vocabulary, not by merges")
        return self


class BinningSettings(Settings):
    max_length: Count
    """Training pairs with more subwords than this on a side, EOS included, are dropped."""
    growth: Annotated[float, Field(gt=1.0)]
    """The upper length of each bin divided by that of the bin before."""


class ModelSettings(Settings):
    """The Transformer of section 3, in the symbols of Table 3."""

    N: Few
    d_model: Annotated[Size, Field(ge=2, multiple_of=2)]
    d_ff: Size
    h: Few
    d_k: Size
    d_v: Size
    P_drop: DropoutProbability
    """Residual dropout: on the output of every sub-layer and on the sums of embeddings and positions (5.4)."""
    attention_dropout: DropoutProbability
    """On the attention weights. The paper and its code of June 2017 have none."""
    relu_dropout: DropoutProbability
    """Inside the feed-forward network. The paper and its code of June 2017 have none."""
    positions: Literal["sinusoidal", "learned"]
    position_layout: Literal["interleaved", "halves"]
    """Sines and cosines alternate (the paper), or all sines come first (Marian; tensor2tensor's exponents differ)."""
    max_positions: Size
    """Rows of the table of learned positions; sinusoids have no limit."""
    sharing: Literal["all", "output", "none"] = "all"
    """One table for source, target and pre-softmax product (3.4), one for the last two, or three tables."""
    projection_biases: bool
    """Biases on the attention's projections: the printed parameter counts need them, the equations show none."""
    initialisation: Literal["glorot", "glorot_fused"]
    """Each projection by itself, or W_Q, W_K and W_V of self-attention as one matrix (tensor2tensor)."""


FREE = ("P_drop", "attention_dropout", "relu_dropout", "initialisation")
"""Settings of a model that need not be those of the model that it starts from."""


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


class ForkSettings(Settings):
    """The state that a forked training starts from."""

    update: Count
    """The last update that both trainings share."""
    link: Annotated[str, Field(pattern=r"^[0-9a-f]{12,64}$")]
    """The hash of the shared training up to that update, or its beginning: `link` in its results/chain.json."""


class TrainingSettings(Settings):
    """The training regime of section 5."""

    updates: Count
    tokens: Count
    """About this many source and this many target tokens per update, over all devices (5.1)."""
    shards: PowerOfTwo
    """Parts of an update, each of which goes through the model by itself. The number of processes must divide it, and
    changes no weight."""
    warmup_steps: Count
    learning_rate_scale: Annotated[float, Field(gt=0.0)]
    """Multiplies Eq. 3; the paper's is 1."""
    beta1: Probability
    beta2: Probability
    epsilon: Annotated[float, Field(gt=0.0)]
    eps_ls: Probability
    precision: Precision
    """Of matrix products; weights and optimizer state are always float32."""
    arithmetic: Literal["ordinary", "portable"] = "ordinary"
    """portable: the weights follow from settings and text alone, on any CPU, with any number of threads, any torch."""
    deterministic: bool = False
    """On GPUs, use kernels that add in a fixed order, so that another run gives the same weights; on CPUs all do."""
    seed: Annotated[int, Field(ge=0)]
    validate_every: Count
    """Updates between two measurements of the validation perplexity."""
    checkpoint_every: Count
    """Updates between two checkpoints for averaging (6.1: ten minutes at the paper's step time)."""
    keep_checkpoints: Few
    """How many checkpoints for averaging are kept."""
    resume_minutes: Annotated[float, Field(gt=0.0)]
    """Minutes between two saved states for resuming; changes no result."""
    verify_every: Count | None = None
    """Updates between two links of the chain of hashes, which `wmt verify` compares; checkpoints have a link anyway."""
    keep_states: Annotated[int, Field(ge=0, le=1024)] = 0
    """How many states to keep, evenly spaced, that `wmt verify` and forks train from. Changes no result."""
    fork: ForkSettings | None = None
    """The state of another training to start from; null: start at update 1."""
    start_from: StartSettings | None = None
    """The model whose weights and subwords to start with, optimizer and schedule afresh; null: random weights."""

    @model_validator(mode="after")
    def _portable_products_are_float32(self) -> TrainingSettings:
        if self.arithmetic == "portable" and self.precision != "float32":
            raise ValueError("with training.arithmetic portable, training.precision must be float32")
        return self

    @model_validator(mode="after")
    def _trains_after_its_fork(self) -> TrainingSettings:
        if self.fork is not None and self.updates <= self.fork.update:
            raise ValueError(f"the fork begins after update {self.fork.update:,}: raise training.updates above that")
        return self


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


class SearchSettings(Settings):
    """Beam search with the length penalty of Wu et al. 2016; section 6.1."""

    beam: Few
    alpha: Annotated[float, Field(ge=0.0, le=10.0)]
    """The exponent of the length penalty, which overflows far above 10; the paper's is 0.6."""
    max_extra: Annotated[int, Field(ge=0, le=100_000)]
    """A translation has at most the source's subwords plus this many."""
    stop: Literal["exact", "tensor2tensor"]
    """exact: the search ends when no unfinished hypothesis can be among the `nbest` best. tensor2tensor: when none can
    beat the worst finished one, however few are finished."""

    def changed(self, changes: Mapping[str, Any]) -> SearchSettings:
        """Return these settings with some values changed; raise InputError for a wrong one."""
        try:
            return SearchSettings.model_validate({**self.model_dump(), **changes})
        except ValidationError as error:
            name, value, rule = first_error(error)
            raise InputError(f"the search's {name} is {value!r}, but {rule}: change it") from error

    def check_nbest(self, nbest: int) -> None:
        """Raise InputError if a beam search cannot give `nbest` translations of a sentence."""
        if not 1 <= nbest <= self.beam:
            raise InputError(f"nbest is {nbest}: it must lie between 1 and the beam, {self.beam}")


class AveragingSettings(Settings):
    """Checkpoint averaging; section 6.1."""

    last: Count
    """How many checkpoints are averaged: 5 for base, 20 for big."""
