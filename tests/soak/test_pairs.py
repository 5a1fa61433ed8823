"""Seven language pairs from files to the report, each with some hundred updates of a tiny model."""

import gzip
import json
from pathlib import Path

import pytest
import sacrebleu
import yaml
from clones import SHRUNKEN, Clone

from nmt.text.parallel_text import read_lines

REAL = Path(__file__).resolve().parents[2].parent / "shared/real"
pytestmark = pytest.mark.skipif(not REAL.exists(), reason="real text (../shared/real) is not here")

PAIRS = {  # source and target: files of the real text; lines for training, then 200 each for validation and test
    "de-en": ("multi30k/train.de", "multi30k/train.en"),
    "fr-en": ("multi30k/train.fr", "multi30k/train.en"),
    "cs-en": ("multi30k/train.cs.gz", "multi30k/train.en"),
    "en-zh": ("langs/newstest2018.en-zh.eng.gz", "langs/newstest2018.en-zh.zho.gz"),
    "en-ja": ("langs/tatoeba-test-v2021-08-07.en-ja.eng.gz", "langs/tatoeba-test-v2021-08-07.en-ja.jpn.gz"),
    "en-ar": ("langs/tatoeba.en-ar.eng.gz", "langs/tatoeba.en-ar.ara.gz"),
    "en-hi": ("langs/newstest2014.en-hi.eng.gz", "langs/newstest2014.en-hi.hin.gz"),
}
HELD_OUT = 200
UPDATES = {"updates": 300, "tokens": 800, "checkpoint_every": 100, "keep_checkpoints": 2, "validate_every": 100}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("pair", PAIRS)
def test_a_pair_from_files_to_the_report(pair: str, tmp_path: Path) -> None:
    """Scores are sacreBLEU's own of the same files, and preparation loses nothing of the references."""
    clone, languages = Clone(tmp_path / "clone"), pair.split("-")
    ends = {"train": (2 * HELD_OUT, 5000), "valid": (0, HELD_OUT), "test": (HELD_OUT, 2 * HELD_OUT)}
    words = ["wmt", "catalog", "add", "mine", "--pair", pair]
    for name, (first, last) in ends.items():
        words.append(f"--{name}")
        for language, source in zip(languages, PAIRS[pair], strict=True):
            packed = (REAL / source).read_bytes()
            lines = (gzip.decompress(packed) if source.endswith(".gz") else packed).decode().split("\n")[:-1]
            (tmp_path / f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines[first:last]))
            words.append(str(tmp_path / f"{name}.{language}"))
    added = clone.run(*words)
    assert added.returncode == 0, added.stderr
    clone.params(
        pair=pair, corpus="mine", row="sample",
        overrides={**SHRUNKEN, "training": UPDATES, "subwords": {"vocabulary": 4000}},
    )  # fmt: skip
    clone.repro()
    scores = json.loads((clone.folder / "results/scores.json").read_text())
    (translated,) = (clone.folder / "results/translations").glob(f"*.average.{languages[1]}")
    command = ["sacrebleu", str(tmp_path / f"test.{languages[1]}"), "-i", str(translated), "-l", pair]
    theirs = json.loads(clone.run(*command, "-w", "10", "-f", "json").stdout)
    assert scores["bleu"] == pytest.approx(theirs["score"], abs=1e-9)
    assert scores["chrf"] == pytest.approx(
        sacrebleu.corpus_chrf([*read_lines(translated)], [[*read_lines(tmp_path / f"test.{languages[1]}")]]).score
    )
    (raw,) = (clone.folder / "data/raw").glob(f"test.*.{languages[1]}")
    assert raw.read_bytes() == (tmp_path / f"test.{languages[1]}").read_bytes()
    settings = yaml.safe_load((clone.folder / "models/average/config.yaml").read_text())
    assert settings["tokenizer"]["tokenizer"] == "none"
    assert (clone.folder / "results/report.html").stat().st_size > 100_000
