"""The notebook nmt/tour.ipynb: every cell runs, with fewer updates and less text; its outputs are of its sources."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench import tour

ROOT = Path(__file__).parents[2]
SIZES = "updates, pairs, tested = 1400, 24_000, 500"


def test_every_cell_runs(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import matplotlib.pyplot as plt  # It takes a second, which each of pytest's processes would spend on collecting.

    (here / "data").mkdir()
    (here / "data/sample").symlink_to(ROOT / "data/sample")
    shown: list[Any] = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(plt.gcf()))
    notebook = json.loads(tour.TOUR.read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert SIZES in cells[0]
    namespace: dict[str, Any] = {}
    with plt.rc_context({"backend": "Agg"}):
        for cell in (cells[0].replace(SIZES, "updates, pairs, tested = 2, 200, 4"), *cells[1:]):
            exec(cell, namespace)
    # Row i of cross-attention has the subword that it writes.
    axes, looked = shown[1].axes[0], namespace["looked"]
    assert [label.get_text() for label in axes.get_yticklabels()] == [*looked.target[1:], "</s>"]
    assert [label.get_text() for label in axes.get_xticklabels()] == looked.source
    assert "on 4 lines (nrefs:1|case:mixed|eff:no|tok:13a|" in capsys.readouterr().out


def test_it_is_committed_with_the_outputs_of_its_sources() -> None:
    """tests/soak/test_tour.py executes it in full."""
    notebook = json.loads(tour.TOUR.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert notebook["metadata"].get("executed", {}).get("sources") == tour.sources(code), "run `make executed-tour`"
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    for cell in code:
        text = "".join(cell["source"])
        kinds = [each["output_type"] for each in cell["outputs"]]
        assert set(kinds) == {"stream"} if "print(" in text else kinds == ["display_data"] * text.count("plt.show()")
    assert tour.TOUR.stat().st_size < tour.LARGEST
