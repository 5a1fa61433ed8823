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

LEAST_VOCABULARY = {"bpe": 4 + 2, "wordpieces": 4 + 256 + 2}
"""Minimum vocabulary sizes: the specials, the 256 bytes of word pieces, and two subwords of the text (BPE: a character
inside and at the end of a word; word pieces: a character and the marker of a space)."""


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

    @property
    def checkpoints(self) -> int:
        """Return how many checkpoints a complete training leaves for averaging; with `best`, validated ones."""
        every, last = self.training.checkpoint_every, self.training.updates
        kept = range(last - last % every, 0, -every)[: self.training.keep_checkpoints]
        validated = (update for update in kept if update == last or update % self.training.validate_every == 0)
        return len(kept) if self.averaging.best is None else len(list(validated))

    @model_validator(mode="after")
    def _accepted_by_later_stages(self) -> Configuration:
        """Refuse now, from the settings alone, what a later stage would refuse hours later."""
        filters, longest, positions = self.preparation.filters, self.binning.max_length, self.model.max_positions
        vocabulary, least = self.subwords.vocabulary, LEAST_VOCABULARY[self.subwords.kind]
        translation = longest + self.search.max_extra
        if filters.min_tokens > filters.max_tokens:
            raise ValueError(
                f"preparation.filters.min_tokens is {filters.min_tokens}, but max_tokens is {filters.max_tokens}, so "
                "no pair would pass: lower preparation.filters.min_tokens or raise preparation.filters.max_tokens"
            )
        if vocabulary is not None and vocabulary < least:
            raise ValueError(
                f"subwords.vocabulary is {vocabulary}, but {self.subwords.kind} needs at least {least}, and more for "
                "most texts: raise it"
            )
        if self.subwords.user_defined_symbols and self.preparation.tokenizer.tokenizer != "none":
            raise ValueError(
                "the tokenizer would tear subwords.user_defined_symbols: set preparation.tokenizer.tokenizer to none"
            )
        if longest < filters.min_tokens + 1:
            raise ValueError(
                f"binning.max_length is {longest}, but pairs of preparation.filters.min_tokens have at least "
                f"{filters.min_tokens + 1} subwords, the end of the sentence included, so no pair would be kept: raise "
                "binning.max_length or lower preparation.filters.min_tokens"
            )
        if self.model.positions == "learned" and positions < translation:
            raise ValueError(
                f"model.max_positions is {positions}, but a sentence of binning.max_length = {longest} subwords may "
                f"have a translation of search.max_extra = {self.search.max_extra} more: raise "
                f"model.max_positions to {translation}, or lower binning.max_length or search.max_extra"
            )
        key, requested = self.averaging.requested
        if requested > self.training.keep_checkpoints:
            raise ValueError(
                f"{key} is {requested}, but training.keep_checkpoints keeps only "
                f"{self.training.keep_checkpoints}: raise training.keep_checkpoints or lower {key}"
            )
        return self
