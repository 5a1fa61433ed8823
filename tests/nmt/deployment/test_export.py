"""Models exported to CTranslate2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import wmt
from model_folders import folder_of

from nmt.config import InputError
from nmt.deployment import ctranslate2_engine, export
from nmt.inference.loading import Models
from nmt.inference.translator import Translator
from tests.nmt.deployment.test_streams import LINES, run


@pytest.mark.parametrize(
    "change", [{}, {"positions": "learned"}, {"projection_biases": False}, {"position_layout": "halves"}]
)
def test_ctranslate2_translates_alike(
    tmp_path: Path, change: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed: pip install ctranslate2")
    folder = folder_of(tmp_path / "model", **change)
    out = tmp_path / "exported"
    assert wmt("export", str(folder), str(out)) == 0
    # Greedy: of random weights the two searches' rules for ending show.
    options = ["--alpha", "0", "--beam", "1"]
    ours = run(folder, tmp_path, *options)
    assert run(out, tmp_path, *options, "--engine", "ctranslate2") == ours
    assert "not GNMT's" in capsys.readouterr().err
    assert wmt("export", str(folder), str(tmp_path / "small"), "--quantization", "int8") == 0
    assert (tmp_path / "small/model.bin").stat().st_size < (out / "model.bin").stat().st_size
    assert len(run(tmp_path / "small", tmp_path, "--engine", "ctranslate2")) == len(LINES)
    models = Models([out], weights=False)
    engine = ctranslate2_engine.CTranslate2Engine(out, models)
    positions = 64 if change.get("positions") == "learned" else ctranslate2_engine.POSITIONS
    assert Translator(models, engine=engine, longest=100_000).longest == positions - 10 - 1
    (parted,) = Translator(models, engine=engine, longest=12).translations(["we do . She sleeps well . " * 3])
    (best,) = parted.hypotheses
    assert len(parted.pieces) == 4
    assert best.score == pytest.approx(best.log_probability / (len(best.ids) + 4) ** 0.6), "as for a line in one piece"
    assert wmt("translate", str(out)) == 1
    assert "--engine ctranslate2" in capsys.readouterr().err
    assert wmt("export", str(folder), str(out)) == 2, "it exists"


@pytest.mark.parametrize(("change", "sentence"), [({"d_k": 4}, "d_k 4 and d_v 8"), ({"h": 1}, "h x d_k = 8")])
def test_what_ctranslate2_cannot_represent_is_refused(change: dict[str, Any], sentence: str, model: Path) -> None:
    settings = Models([model]).description.model.model_copy(update=change)
    with pytest.raises(InputError, match=sentence):
        export.check_representable(settings)
