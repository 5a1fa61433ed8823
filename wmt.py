"""The command `wmt`, under a name of its own: another package `pipeline` may come before ours on PYTHONPATH."""

import sys
from pathlib import Path


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    try:
        from pipeline.cli.app import main as run

        run()
    except KeyboardInterrupt:  # During the imports; Typer handles later ones.
        sys.exit(130)
