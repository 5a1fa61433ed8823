"""Models exported as packages of Argos Translate: what is in them, and that it translates alike."""

import json
import zipfile
from pathlib import Path

import pytest
import sentencepiece
from command_line import refused, wmt
from model_folders import folder_of

from nmt.deployment import argos
from nmt.inference.translator import Translator

LINES = ["the old man sees a dog .", "She sleeps well , and we do !"]


def test_a_package_has_what_argos_reads(here: Path) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed: pip install ctranslate2")
    ours = Translator(folder_of(Path("model"), pieces=300))
    assert wmt("export", "model", "en_de.argosmodel", "--to", "argos") == 0
    with zipfile.ZipFile("en_de.argosmodel") as archive:
        archive.extractall("unpacked")
    (root,) = Path("unpacked").iterdir()
    assert root.name == "translate-en_de-1_0"
    assert {path.name for path in root.iterdir()} == {"model", "sentencepiece.model", "metadata.json", "README.md"}
    metadata = json.loads((root / "metadata.json").read_text())
    assert metadata.items() >= {"from_code": "en", "from_name": "English", "to_code": "de", "to_name": "German"}.items()
    assert "# English to German\n" in (root / "README.md").read_text()
    processor = sentencepiece.SentencePieceProcessor(model_file=str(root / "sentencepiece.model"))
    batch = [processor.encode(line, out_type=str) for line in LINES]  # without EOS, as Argos Translate
    found = ctranslate2.Translator(str(root / "model")).translate_batch(batch, beam_size=1)
    # Greedy: of random weights two searches with a beam end by other rules.
    greedy = ours.settings.changed({"alpha": 0.0, "beam": 1, "max_extra": 200})
    for each, expected in zip(found, Translator(ours.model, settings=greedy).translate(LINES), strict=True):
        assert processor.decode(each.hypotheses[0])[:40] == expected[:40]
    assert not list(Path().glob(".*")), "nothing else is left"
    scores = {"chrf": 41.26, "chrf_low": 40.0, "chrf_set": "test, 9 lines"}
    argos.export(Path("model"), Path("scored.argosmodel"), run=scores)
    with zipfile.ZipFile("scored.argosmodel") as archive:
        readme = archive.read("translate-en_de-1_0/README.md").decode()
    assert "chrF 41.3 on test, 9 lines, by sacreBLEU." in readme


def test_what_is_no_model_on_raw_word_pieces_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model")
    said = refused("export", folder, tmp_path / "out.argosmodel", "--to", "argos")
    assert "has subwords `bpe` of text by the tokenizer `moses`, and Argos Translate raw word pieces alone" in said
    assert not (tmp_path / "out.argosmodel").exists()
