"""Lines that many tests translate, and files of lines."""

from collections.abc import Iterable
from pathlib import Path

LINES = ["the old man sees a dog .", "", "She sleeps well", "we do !", "   ", "He did not see it"]


def write_lines(path: Path, lines: Iterable[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
