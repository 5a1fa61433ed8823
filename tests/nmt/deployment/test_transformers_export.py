"""Models exported to Hugging Face's transformers, which opens them."""

import json
import pickle
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from clones import REAL, ROOT
from command_line import refused, wmt
from model_folders import WORDS, folder_of
from refusals import check_refusal

from nmt.common.files import sha256_of
from nmt.common.tensors import load_tensors, save_tensors
from nmt.deployment import transformers_export
from nmt.deployment.model_card import card
from nmt.ids import PAD, UNK
from nmt.inference.loading import LoadedModel
from nmt.inference.model_folder import load, load_description
from nmt.inference.translator import Translator

HARD = [
    "It's 1,000.50 e-mails... from the U.S., isn't it?", "</s> <unk> <s> are text", 'He said: "No!" (twice)',
    "tab\there, \x85 and \u2028 there", "漢字 😀 ő", "\u3000 two  spaces \r", "........... aaaaaaa", "rock 'n' roll's",
]  # fmt: skip

ALONE = """
import os, sys
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(".", trust_remote_code=True)
from nmt import ids
print(tokenizer(sys.argv[1]).input_ids, os.path.relpath(ids.__file__).split("/")[0])
"""
"""Where nmt is not installed, the tokenizer's own copy is used."""


def lines() -> list[str]:
    """Lines of the sample and, where it is at hand, of real text."""
    with tarfile.open(ROOT / "data/sample/dev.tgz") as archive:
        texts = archive.extractfile("dev/sampledev.en").read().decode().splitlines()[:40]
    if REAL.exists():
        for name in ("multi30k/test2016.en", "newstest/newstest2013.en-de.de", "newstest/newstest2013.en-fr.fr"):
            texts += (REAL / name).read_text(encoding="utf-8").split("\n")[:400:10]
    return texts + HARD


def word_piece_folder(folder: Path, text: list[str], symbols: tuple[str, ...] = (), **model: Any) -> Path:
    """A model folder with random weights and word pieces of raw text, as row `sample` has them for en-fr."""
    folder_of(folder, words=" ".join(text), pieces=600, symbols=symbols, d_ff=24, projection_biases=False, **model)
    weights = load_tensors(folder / "model.safetensors")
    table = weights["embedding.table"]
    # One of the two is the likeliest subword everywhere, and neither may be written.
    table[PAD] = -10 * table[UNK]
    table[UNK] *= 10
    save_tensors(folder / "model.safetensors", weights)
    return folder


def check_alike(folder: Path, out: Path, texts: list[str]) -> Any:
    """transformers gives the ids, logits, greedy translations and text of the model folder. Return its tokenizer."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    loaded = LoadedModel(folder)
    tokenizer = AutoTokenizer.from_pretrained(str(out), trust_remote_code=True)
    theirs, loading = AutoModelForSeq2SeqLM.from_pretrained(str(out), output_loading_info=True)
    assert not any(loading.values()), "every weight has its place"
    ids = [loaded.encode(text) for text in texts]
    assert tokenizer(texts).input_ids == ids
    for row in ids:
        expected = loaded.target.detokenize(loaded.subwords.decode(row))
        assert tokenizer.decode(row, skip_special_tokens=True) == expected
    batch = tokenizer(texts[:12], return_tensors="pt", padding=True)
    start, our_model = torch.tensor([[1, 5, 9, 6]]), loaded.transformer
    logits = theirs(**batch, decoder_input_ids=start.expand(12, -1)).logits
    rows = loaded.subwords.used_rows
    ours = our_model.logits(our_model(batch.input_ids, start.expand(12, -1)))[..., :rows]
    torch.testing.assert_close(logits, ours, atol=1e-3, rtol=0)
    written = theirs.generate(**batch, num_beams=1, max_length=16)[:, 1:].tolist()
    greedy = Translator(loaded, settings=loaded.description.search.changed({"beam": 1})).translations(texts[:12])
    for translation, their_ids in zip(greedy, written, strict=True):
        best = translation.hypotheses[0].ids[:14]
        assert their_ids[: len(best)] == best
    return tokenizer


def test_a_card_has_the_headline_of_its_run(model: Path) -> None:
    """It is chrF for Japanese and Korean if BLEU's segmenter is not installed."""
    run = {"licences": ["CC0"], "certificate": "c0", "chrf": 41.26, "chrf_signature": "nrefs:1|version:2"}
    run |= {"chrf_set": "test, 9 lines", "chrf_low": 40.0, "chrf_high": 42.0}
    assert "Licences of that corpus: CC0." in card(load_description(model), run, has_code=False)
    run["licences"] = []  # of the user's own files
    text = card(load_description(model), run, has_code=False)
    assert "Licences of that corpus: not known here." in text
    assert "Scores: chrF 41.3 (95% interval 40.0 to 42.0) on test, 9 lines:\n`nrefs:1|version:2`." in text
    assert "- type: chrf\n      value: 41.26\n      name: chrF nrefs:1|version:2" in text


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_transformers_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])  # The tokenizer adds its archive.
    texts, out = lines(), tmp_path / "out"
    folder = folder_of(tmp_path / "model", words=" ".join(texts[:60]))
    assert wmt("export", str(folder), str(out), "--to", "transformers") == 0
    tokenizer = check_alike(folder, out, texts)
    loaded = LoadedModel(folder)
    german = 'Er sagte: "it\'s".'
    assert tokenizer(text_target=german).input_ids == loaded.encode_target(german) != loaded.encode(german)
    for where in (out, tmp_path / "again"):
        tokenizer.save_pretrained(where)
    assert tokenizer.convert_tokens_to_ids("no subword") == tokenizer.unk_token_id == UNK
    assert (tmp_path / "again/subwords/codes.bpe").read_bytes() == (folder / "subwords/codes.bpe").read_bytes()
    command = [sys.executable, "-c", ALONE, texts[0]]
    tokenizer.padding_side = "left"
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again(texts[:9]).input_ids == tokenizer(texts[:9]).input_ids
    assert again.padding_side == "left"
    alone = subprocess.run(command, cwd=out, stdout=subprocess.PIPE, text=True, check=True)
    assert alone.stdout == f"{loaded.encode(texts[0])} nmt.zip\n"

    pieces = word_piece_folder(tmp_path / "wordpieces", texts[:60])
    transformers_export.export(pieces, tmp_path / "standard")
    assert not list((tmp_path / "standard").glob("*.py")), "no code is needed"
    check_alike(pieces, tmp_path / "standard", texts)
    tagged = word_piece_folder(tmp_path / "tagged", texts[:60], ("<2de>",), position_layout="halves")
    transformers_export.export(tagged, tmp_path / "with-tags")
    check_alike(tagged, tmp_path / "with-tags", ["<2de> the house", *texts[:12]])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"positions": "learned"}, "learned positions"),
        ({"h": 1}, "h x d_k = d_model"),
        # A word and a special would have one row of the exported vocabulary.
        ({"words": f"{WORDS} <unk>"}, "two subwords have the symbol <unk>"),
        ({"words": f"{WORDS} </s>"}, "two subwords have the symbol </s>"),
        # MarianMT could represent this parser, whose symbols are made of subwords.
        ({"target": "tree"}, r"writes trees, .* parse with `wmt parse`$"),
    ],
)
def test_what_marian_cannot_represent_is_refused(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", **change)
    if "target" in change:
        (folder / "config.yaml").write_text((folder / "config.yaml").read_text().replace("moses", "vinyals"))
    check_refusal(sentence, transformers_export.export, folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_model_card_has_the_scores_of_this_model_alone(tmp_path: Path) -> None:
    folder, results = folder_of(tmp_path / "models/average"), tmp_path / "results"
    results.mkdir()
    scores = {"bleu": 31.25, "bleu_low": 30.0, "bleu_high": 32.5, "bleu_signature": "sig", "bleu_set": "set, 9 lines"}
    (results / "scores.json").write_text(json.dumps(scores))
    files = ("models/average/model.safetensors", "results/scores.json")
    certificate = {
        "files": {name: sha256_of(tmp_path / name) for name in files},
        "settings": {"data": {"archives": [{"licence": "CC BY 2.0"}, {"licence": "CC BY 2.0"}]}},
        "seal": "f00d",
    }
    (results / "certificate.json").write_text(json.dumps(certificate))
    assert wmt("export", str(folder), str(tmp_path / "out"), "--to", "transformers", "--dtype", "bfloat16") == 0
    assert {tensor.dtype for tensor in load_tensors(tmp_path / "out/model.safetensors").values()} == {torch.bfloat16}
    card = (tmp_path / "out/README.md").read_text(encoding="utf-8")
    for part in ("BLEU 31.2 (95% interval 30.0 to 32.5) on set, 9 lines", "f00d", "corpus: CC BY 2.0.", "divides"):
        assert part in card
    (entry,) = yaml.safe_load(card.split("---\n")[1])["model-index"]
    assert entry["results"][0]["metrics"] == [{"type": "bleu", "value": 31.25, "name": "BLEU sig"}]
    (results / "scores.json").write_text(json.dumps({**scores, "bleu": 99.0}))
    assert wmt("export", str(folder), str(tmp_path / "other"), "--to", "transformers") == 0
    assert "model-index" not in (tmp_path / "other/README.md").read_text(encoding="utf-8")


def test_a_model_folder_of_half_the_size_translates(tmp_path: Path) -> None:
    folder, half = folder_of(tmp_path / "model", d_ff=512), tmp_path / "half"
    assert wmt("export", str(folder), str(half), "--to", "nmt", "--dtype", "bfloat16") == 0
    sizes = [(model_folder / "model.safetensors").stat().st_size for model_folder in (folder, half)]
    assert sizes[1] < 0.6 * sizes[0]
    assert len({file.stat().st_mode for file in half.glob("*.*")}) == 1, "who can read one can read all"
    rounded = {name: tensor.bfloat16().float() for name, tensor in load_tensors(folder / "model.safetensors").items()}
    torch.testing.assert_close(dict(load(half).state_dict()), rounded, rtol=0, atol=0)
    out = tmp_path / "out"
    assert "for CTranslate2 alone" in refused("export", folder, out, "--to", "nmt", "--dtype", "int8")
    (half / "subwords/subwords.yaml").write_text("")
    assert "half/subwords holds no usable subwords" in refused("export", half, out, "--to", "nmt")
    assert not out.exists()
