"""Models exported to CTranslate2."""

import re
from pathlib import Path
from typing import Any

import pytest
from command_line import wmt
from model_folders import folder_of
from refusals import check_refusal
from text_lines import LINES

from nmt.deployment import export
from nmt.inference.translator import Translator


@pytest.mark.parametrize(
    "change", [{}, {"positions": "learned"}, {"projection_biases": False}, {"position_layout": "halves"}]
)
def test_ctranslate2_translates_alike(here: Path, change: dict[str, Any]) -> None:
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed: pip install ctranslate2")
    from tests.bench.ctranslate2_engine import CTranslate2Engine

    folder = folder_of(Path("models/average"), **change)
    assert wmt("export", str(folder), "out") == 0
    # Greedy: of random weights the two searches' rules for ending show.
    ours = Translator(folder)
    greedy = ours.settings.changed({"alpha": 0.0, "beam": 1})
    ours = Translator(ours.model, settings=greedy)
    theirs = Translator(ours.model, settings=greedy, engine=CTranslate2Engine(Path("out"), ours.model))
    expected = list(ours.translate(LINES))
    assert list(theirs.translate(LINES)) == expected
    if not change:
        text = (Path(__file__).parents[3] / "nmt/README.md").read_text(encoding="utf-8")
        (example,) = re.findall(r"^```python\n(import ctranslate2.*?)^```$", text, re.DOTALL | re.MULTILINE)
        exec(example, namespace := dict[str, Any]())
        german = next(ours.translate(["She sees a dog."]))
        assert namespace["german"].startswith(german), "of random weights: up to our limit of its length"
        assert wmt("export", str(folder), "small", "--quantization", "int8") == 0
        assert Path("small/model.bin").stat().st_size < Path("out/model.bin").stat().st_size
        small = CTranslate2Engine(Path("small"), ours.model)
        assert len(list(Translator(ours.model, engine=small).translate(LINES))) == len(LINES)
        assert wmt("export", str(folder), "out") == 2, "it exists"


@pytest.mark.parametrize(("change", "sentence"), [({"d_k": 4}, "d_k 4 and d_v 8"), ({"h": 1}, "h x d_k = 8")])
def test_what_ctranslate2_cannot_represent_is_refused(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed: pip install ctranslate2")
    check_refusal(sentence, export.export, folder_of(tmp_path / "model", **change), tmp_path / "out")
