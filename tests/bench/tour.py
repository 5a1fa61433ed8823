"""Execute nmt/tour.ipynb and write its outputs, which GitHub shows: `make executed-tour`.

Needs Jupyter, which that command installs. The notebook's metadata say of which sources the outputs are, and on which
processor they were made: others round differently.
"""

import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from nmt.common.cpu import processor
from nmt.common.files import write_text

ROOT = Path(__file__).resolve().parents[2]
TOUR = ROOT / "nmt/tour.ipynb"
LARGEST = 250_000  # bytes of the notebook, pictures and all


def sources(cells: Sequence[Any]) -> str:
    """The hash of all code."""
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return hashlib.sha256("\0".join(code).encode()).hexdigest()


def executed() -> Any:
    """The notebook with outputs that were made now, by a training of some minutes."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(TOUR, as_version=4)
    with tempfile.TemporaryDirectory() as folder:  # Without the model of an earlier execution.
        Path(folder, "data").mkdir()
        Path(folder, "data/sample").symlink_to(ROOT / "data/sample")
        place = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=None, kernel_name="python3", record_timing=False, resources=place).execute()
    conditions = {"processor": processor(), "threads": torch.get_num_threads(), "torch": torch.__version__}
    notebook.metadata["executed"] = {"sources": sources(notebook.cells), **conditions}
    return notebook


def main() -> None:
    """The command."""
    import nbformat

    text = nbformat.writes(executed()) + "\n"
    assert len(text.encode()) < LARGEST, "use fewer or smaller pictures"
    write_text(TOUR, text)


if __name__ == "__main__":
    main()
