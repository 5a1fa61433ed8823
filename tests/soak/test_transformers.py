"""Models exported to transformers: the ids of all real text at hand, the greedy translations of a trained model."""

import gzip
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from nmt import fit
from nmt.deployment import transformers_export
from nmt.ids import EOS, PAD
from nmt.inference.loading import LoadedModel
from nmt.inference.model_folder import load_description, save_model
from nmt.model import Transformer
from nmt.text import subwords
from nmt.text.settings import SubwordSettings

REAL = Path(__file__).resolve().parents[2].parent / "shared/real"
pytestmark = [
    pytest.mark.skipif(not REAL.exists(), reason="real text (../shared/real) is not here"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.timeout(7200),
]


def lines(path: Path) -> list[str]:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return content.decode().removesuffix("\n").split("\n")


def texts() -> Iterator[list[str]]:
    for path in sorted(REAL.glob("*/*")):
        if path.suffix not in (".md", ".index") and not path.name.endswith(".mrg.gz"):
            yield lines(path)


def multi30k(name: str) -> list[str]:
    return lines(REAL / "multi30k" / name)


def test_all_real_text_has_the_same_ids_and_a_trained_model_translates_it_alike(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
    english, german = multi30k("train.en"), multi30k("train.de")
    size = {"N": 2, "d_model": 128, "d_ff": 512, "h": 4}
    training = {"updates": 600, "tokens": 2000, "warmup_steps": 300, "checkpoint_every": 200, "validate_every": 300}
    folder = tmp_path / "bpe"
    valid = (multi30k("valid.en")[:200], multi30k("valid.de")[:200])
    translator = fit((english, german), valid, folder, merges=4000, model=size, training=training)

    counts = Counter(word for line in english + german for word in line.split())
    learned = subwords.learn(counts, SubwordSettings(kind="wordpieces", merges=None, vocabulary=4000, multiple_of=8))
    learned.save(tmp_path / "pieces.subwords")
    base = load_description(folder)
    words = base.tokenizer.model_copy(update={"tokenizer": "none"})
    description = base.model_copy(update={"vocabulary": learned.size, "tokenizer": words})
    torch.manual_seed(1)
    weights = Transformer(description.model, learned.size).state_dict()
    save_model(tmp_path / "pieces", weights, description, tmp_path / "pieces.subwords")

    for name in ("bpe", "pieces"):
        transformers_export.export(tmp_path / name, tmp_path / f"{name}.out")
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(tmp_path / f"{name}.out"), trust_remote_code=True)
        loaded, checked = LoadedModel(tmp_path / name), 0
        for text in texts():
            kept = [line for line in text if line.strip()]
            assert tokenizer(kept).input_ids == [loaded.encode(line) for line in kept]
            checked += len(kept)
        print(f"{name}: the ids of {checked:,} lines are equal")

    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(str(tmp_path / "bpe.out"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "bpe.out"), trust_remote_code=True)
    translator.settings = translator.settings.changed({"beam": 1})
    source = multi30k("test2016.en")
    generated: list[list[int]] = []
    for start in range(0, len(source), 100):
        batch = tokenizer(source[start : start + 100], return_tensors="pt", padding=True)
        rows = theirs.generate(**batch, num_beams=1)[:, 1:].tolist()
        generated += [[token for token in row if token not in (PAD, EOS)] for row in rows]
    same, loaded = 0, translator.model
    for line, translation, their in zip(source, translator.translations(source), generated, strict=True):
        ours = translation.hypotheses[0].ids
        # transformers has another limit of length.
        is_cut = len(ours) == len(loaded.encode(line)) - 1 + loaded.description.search.max_extra
        same += ours == (their[: len(ours)] if is_cut else their)
    print(f"{same:,} of {len(source):,} greedy translations are equal")
    assert same >= 0.995 * len(source), "two subwords are seldom equally likely within rounding"
