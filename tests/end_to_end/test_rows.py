"""Every row of the tables, at a quarter of its widths, trains an update on the sample, and translates or parses.

A parser's row trains with its own pair: trees in its linearisation, a closed target vocabulary, its sharing of tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from trainings import write_arrow

from nmt import codec
from nmt.config import EOS, Job, ModelSettings, SearchSettings, SubwordSettings, TokenizerSettings, TrainingSettings
from nmt.evaluation.forced_scoring import score
from nmt.flops import parameters
from nmt.inference.search import search
from nmt.parsing.trees import read_trees
from nmt.text.subwords import Subwords
from nmt.training.batches import Corpus, train_files, updates
from nmt.training.distributed import World
from nmt.training.trainer import Trainer
from pipeline.config import rows
from pipeline.data import archives

SAMPLE = Path(__file__).resolve().parents[2] / "data/sample"
PAIRS = 60
WIDTHS = ("d_model", "d_ff", "d_k", "d_v")
SCALE = 4
"""Widths are a quarter of the row's; layers, heads and all else are the row's own."""
LINE = "The old man sees the dog ."


def first_lines(archive: str, *names: str) -> list[list[str]]:
    """The first lines of members of an archive of the embedded sample."""
    found = {}
    for name, stream in archives.members(SAMPLE / archive, names):
        found[name] = archives.plain(stream, name).read().decode().split("\n")[:PAIRS]
    return [found[name] for name in names]


@dataclass(frozen=True)
class Prepared:
    """The first training pairs of the embedded sample as a binned corpus of one bin, and its vocabularies."""

    source: Subwords
    target: Subwords
    """The source's, or a closed vocabulary."""
    corpus: Path

    @property
    def target_rows(self) -> int | None:
        """Rows of a target vocabulary of its own."""
        return None if self.target is self.source else self.target.size


@pytest.fixture(scope="module")
def prepare(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Prepared]:
    """What the rows with a tokenizer train on."""

    @cache
    def prepared(tokenizer: str) -> Prepared:
        bpe = {"kind": "bpe", "merges": 300, "vocabulary": None, "multiple_of": 64}
        if tokenizer == "moses":
            names = ("training/sample.de-en.en", "training/sample.de-en.de")
            sides = first_lines("training-parallel-sample.tgz", *names)
        else:
            (bank,) = first_lines("trees.tgz", "trees/train.mrg")
            _, tokens = codec.tokenizers("en", "tree", settings_of(tokenizer))
            words = [" ".join(tree.words()) for tree in read_trees(bank, "trees/train.mrg")]
            sides = [words, [tokens.tokenize(tree) for tree in bank]]
            bpe["target"] = "closed"
        counts = [Counter(word for line in side for word in line.split()) for side in sides]
        source, closed = codec.learn(*counts, SubwordSettings.model_validate(bpe))
        target = closed or source
        folder = tmp_path_factory.mktemp("rows")
        pairs = [
            ([*source.encode(line), EOS], [*target.encode(other), EOS]) for line, other in zip(*sides, strict=True)
        ]
        write_arrow(folder / "train.00999.arrow", pairs)
        return Prepared(source, target, folder)

    return prepared


def settings_of(tokenizer: str) -> TokenizerSettings:
    return TokenizerSettings.model_validate(
        {"tokenizer": tokenizer, "normalize_punctuation": False, "aggressive_hyphens": False}
    )


def scaled(model: dict[str, Any]) -> ModelSettings:
    return ModelSettings(**{key: value // SCALE if key in WIDTHS else value for key, value in model.items()})


@pytest.mark.parametrize("name", list(rows.table().rows))
def test_a_row_trains_an_update_and_translates_or_parses_a_sentence(
    name: str, prepare: Callable[[str], Prepared]
) -> None:
    pair = rows.row(name).pair
    settings = rows.settings(name, pair)
    tokenizer = settings["preparation"]["tokenizer"]["tokenizer"]
    prepared, model = prepare(tokenizer), scaled(settings["model"])
    parses = pair == "en-tree"
    assert (settings["subwords"]["target"], model.sharing) == (("closed", "output") if parses else ("joint", "all"))
    assert (prepared.target_rows is not None) == parses
    job = Job(
        model=model,
        # In one shard: the paper's rows do not differ in shards.
        training=TrainingSettings(**{**settings["training"], "seed": 1, "shards": 1}),
        vocabulary=prepared.source.size,
        target_vocabulary=prepared.target_rows,
        corpus=str(prepared.corpus),
    )
    trainer = Trainer(job, World(0, 1, torch.device("cpu")))
    expected = parameters(model, prepared.source.size, prepared.target_rows)
    assert sum(parameter.numel() for parameter in trainer.parameters) == expected
    # The biases of keys cancel in the softmax: their gradient is nothing but rounding.
    matrices = [parameter for parameter in trainer.parameters if parameter.dim() > 1]
    before = [matrix.detach().clone() for matrix in matrices]
    (update,) = updates(Corpus(train_files(prepared.corpus)), 1, 200, job.training.shards, 0, 1, 1, 1)
    trainer.step(update)
    interval = trainer.measured.take_interval()
    assert (interval.skipped, interval.nll > 0) == (0, True)
    assert not any(torch.equal(old, new) for old, new in zip(before, matrices, strict=True))
    ids = [*prepared.source.encode(LINE), EOS]
    source = torch.tensor([ids])
    trainer.model.eval()
    search_settings = SearchSettings(**{**settings["search"], "max_extra": 5})
    (hypotheses,) = search(trainer.model, source, search_settings, prepared.target.used_rows)
    (forced,) = score([trainer.model], [(ids, [*hypotheses[0].ids, EOS])])
    assert hypotheses[0].log_probability == pytest.approx(forced.log_probability, abs=1e-3), "step by step, as at once"
    assert len(hypotheses[0].ids) <= source.shape[1] - 1 + 5
    written = prepared.target.decode(hypotheses[0].ids)
    assert isinstance(written, str)
    if parses:
        _, tokens = codec.tokenizers("en", "tree", settings_of(tokenizer))
        (tree,) = read_trees([tokens.detokenize(written, LINE)], "the output")
        assert tree.words() == LINE.split()
