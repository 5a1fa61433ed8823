"""The configuration of a run: every section, and the rules between them."""

from __future__ import annotations

from pydantic import model_validator

from nmt.inference.settings import SearchSettings
from nmt.model_settings import ModelSettings
from nmt.schema import Settings
from nmt.text.settings import BinningSettings, PreparationSettings, SubwordSettings
from nmt.training.settings import TrainingSettings
from pipeline.config.corpora import DataSettings, RunSettings
from pipeline.config.sections import AttentionSettings, AveragingSettings, ScoringSettings, VersionSettings


class Configuration(Settings):
    """Everything that a run depends on: the sections of results/config.yaml."""

    run: RunSettings
    data: DataSettings
    preparation: PreparationSettings
    subwords: SubwordSettings
    binning: BinningSettings
    model: ModelSettings
    training: TrainingSettings
    averaging: AveragingSettings
    search: SearchSettings
    attention: AttentionSettings
    scoring: ScoringSettings
    versions: VersionSettings

    @model_validator(mode="after")
    def _accepted_by_later_stages(self) -> Configuration:
        """Refuse now, from the settings alone, what a later stage would refuse hours later."""
        positions, longest = self.model.max_positions, self.binning.max_length + self.search.max_extra
        if self.subwords.user_defined_symbols and self.preparation.tokenizer.tokenizer != "none":
            remedy = "set preparation.tokenizer.tokenizer to none"
            raise ValueError(f"the tokenizer would tear subwords.user_defined_symbols: {remedy}")
        if self.model.positions == "learned" and positions < longest:
            needed = f"binning.max_length and search.max_extra are {longest} in sum"
            raise ValueError(f"model.max_positions is {positions}, but {needed}: raise it, or lower one of these")
        key, requested = self.averaging.requested
        if requested > self.training.keep_checkpoints:
            kept = f"training.keep_checkpoints keeps only {self.training.keep_checkpoints}"
            raise ValueError(f"{key} is {requested}, but {kept}: raise that, which trains anew, or lower {key}")
        if self.training.r_drop and not self.model.P_drop + self.model.attention_dropout + self.model.relu_dropout:
            raise ValueError("training.r_drop needs dropout, in which its two passes differ: raise model.P_drop")
        return self
