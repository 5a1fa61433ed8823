"""Every row of the paper's tables makes a model that trains an update on the sample and translates a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from nmt.config import EOS, Job, ModelSettings, SearchSettings, SubwordSettings, TrainingSettings
from nmt.flops import parameters
from nmt.inference.search import search
from nmt.text import subwords
from nmt.text.subwords import Subwords
from nmt.training.batches import Corpus, train_files, updates
from nmt.training.distributed import World
from nmt.training.trainer import Trainer
from pipeline.config import rows
from pipeline.corpora import archives

SAMPLE = Path(__file__).resolve().parents[2] / "data/sample/training-parallel-sample.tgz"
PAIRS = 60
WIDTHS = ("d_model", "d_ff", "d_k", "d_v")
SCALE = 4
"""Widths are a quarter of the row's; layers, heads and all else are the row's own."""


@pytest.fixture(scope="module")
def text() -> list[tuple[str, str]]:
    """The first training pairs of the embedded sample."""
    names = ("training/sample.de-en.en", "training/sample.de-en.de")
    sides = {}
    for member in archives.members(SAMPLE, names):
        sides[member.name] = b"".join(archives.plain_chunks(member, member.name)).decode().split("\n")[:PAIRS]
    return list(zip(*(sides[name] for name in names), strict=True))


@pytest.fixture(scope="module")
def pieces(text: Sequence[tuple[str, str]]) -> Subwords:
    """Joint BPE learnt on them."""
    counts = Counter(word for pair in text for side in pair for word in side.split())
    return subwords.learn(counts, SubwordSettings(kind="bpe", merges=300, vocabulary=None, multiple_of=64))


@pytest.fixture(scope="module")
def binned(text: Sequence[tuple[str, str]], pieces: Subwords, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pairs as a binned corpus of one bin."""
    folder = tmp_path_factory.mktemp("rows")
    kind = pa.list_(pa.uint16())
    sides = [pa.array([[*pieces.encode(line), EOS] for line in side], kind) for side in zip(*text, strict=True)]
    table = pa.table({"src": sides[0], "tgt": sides[1], "line": pa.array(np.arange(len(text)))})
    with pa.OSFile(str(folder / "train.00099.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
        out.write_table(table)
    return folder


def scaled(model: dict[str, Any]) -> ModelSettings:
    return ModelSettings(**{key: value // SCALE if key in WIDTHS else value for key, value in model.items()})


@pytest.mark.parametrize("name", list(rows.table().rows))
def test_a_row_trains_an_update_and_translates_a_sentence(name: str, pieces: Subwords, binned: Path) -> None:
    settings = rows.settings(name, "en-de")
    model = scaled(settings["model"])
    job = Job(
        model=model,
        training=TrainingSettings(**{**settings["training"], "seed": 1}),
        vocabulary=pieces.size,
        corpus=str(binned),
    )
    trainer = Trainer(job, World(0, 1, torch.device("cpu")))
    assert sum(parameter.numel() for parameter in trainer.parameters) == parameters(model, pieces.size)
    # The biases of keys cancel in the softmax: their gradient is nothing but rounding.
    matrices = [parameter for parameter in trainer.parameters if parameter.dim() > 1]
    before = [matrix.detach().clone() for matrix in matrices]
    (update,) = updates(Corpus(train_files(binned)), 1, 200, job.training.shards, 0, 1, 1, 1)
    trainer.step(update)
    assert trainer.measured.check_gradients() == []
    assert trainer.measured.take_interval().nll > 0
    assert not any(torch.equal(old, new) for old, new in zip(before, matrices, strict=True))
    source = torch.tensor([[*pieces.encode("The old man sees the dog ."), EOS]])
    trainer.model.eval()
    search_settings = SearchSettings(**{**settings["search"], "max_extra": 5})
    (hypotheses,) = search(trainer.model, source, search_settings, pieces.used_rows)
    assert hypotheses[0].score <= 0
    assert len(hypotheses[0].ids) <= source.shape[1] - 1 + 5
    assert isinstance(pieces.decode(hypotheses[0].ids), str)
