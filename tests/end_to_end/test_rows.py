"""Every row of the tables, with an eighth of its widths and at most two layers, trains an update and searches."""

from pathlib import Path

import pytest
import torch
from trainings import ALONE

from nmt.evaluation.forced_scoring import score
from nmt.ids import EOS
from nmt.inference.decoder import Decoder
from nmt.inference.search import search
from nmt.inference.settings import SearchSettings
from nmt.model_settings import ModelSettings
from nmt.training.batches import Corpus, train_files, updates
from nmt.training.settings import Job, TrainingSettings
from nmt.training.trainer import Trainer
from pipeline.config import rows

WIDTHS = ("d_model", "d_ff", "d_k", "d_v")
VOCABULARY = 16


@pytest.mark.parametrize("name", list(rows.table().rows))
def test_a_row_trains_an_update_and_translates_or_parses_a_sentence(name: str, copy_corpus: Path) -> None:
    parses = rows.row(name).pair == "en-tree"
    settings = rows.settings(name, rows.row(name).pair)
    sizes = {key: settings["model"][key] // 8 for key in WIDTHS} | {"N": min(settings["model"]["N"], 2)}
    model = ModelSettings(**{**settings["model"], **sizes})
    assert (settings["subwords"]["target"], model.sharing) == (
        ("closed", "output") if parses else ("joint", "output" if name == "transformer_iwslt_de_en" else "all")
    )
    job = Job(
        model=model,
        # In one shard: the paper's rows do not differ in shards.
        training=TrainingSettings(**{**settings["training"], "seed": 1, "shards": 1}),
        vocabulary=VOCABULARY,
        target_vocabulary=24 if parses else None,
        corpus=str(copy_corpus),
    )
    trainer = Trainer(job, ALONE)
    # The biases of keys cancel in the softmax: their gradient is nothing but rounding.
    matrices = [parameter for parameter in trainer.parameters if parameter.dim() > 1]
    before = [matrix.detach().clone() for matrix in matrices]
    (update,) = updates(Corpus(train_files(copy_corpus)), 1, 200, 1, 0, 1, range(1, 2), model.h)
    trainer.step(update)
    interval = trainer.measured.take_interval()
    assert (interval.skipped, interval.nll > 0) == (0, True)
    assert not any(torch.equal(old, new) for old, new in zip(before, matrices, strict=True))
    ids = [4, 5, 6, 7, 8, 9, EOS]
    trainer.model.eval()
    beams = SearchSettings(**{**settings["search"], "max_extra": 5})
    hypothesis = search([Decoder(trainer.model)], torch.tensor([ids]), beams, VOCABULARY)[0][0]
    (forced,) = score(trainer.model, [(ids, [*hypothesis.ids, EOS])])
    assert hypothesis.log_probability == pytest.approx(forced.log_probability, abs=1e-3), "step by step, as at once"
    assert len(hypothesis.ids) <= len(ids) - 1 + 5
