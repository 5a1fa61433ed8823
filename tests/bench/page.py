"""Size and load time of the report's page: `python -m tests.bench.page` (a base-sized run), or `--page FILE`.

`--page results/report.html --pictures tests/bench` makes the pictures of the README.

The base-sized page has the attention of 20 pairs of 26 subwords on average (6 layers, 8 heads), 3,003 lines and 1,000
points per curve. Weights are random and compress as those of the sample's model do, to 0.38 of their bytes. Needs
Chromium.
"""

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from browser import chromium, opened

from pipeline.report import figures, page, sentences
from pipeline.report.page import Heading, Tiles
from pipeline.report.sentences import Line
from tests.bench import wmt_like
from tests.bench.conditions import announce

LAYERS, HEADS, PAIRS, LINES, POINTS = 6, 8, 20, 3003, 1000
CONCENTRATION = 0.05  # of the Dirichlet distribution of a row of weights
VIEWS = {"translations": "Translations", "attention": "Attention"}
"""Views that are built when their section is opened, and the section."""


def attention_file(path: Path, lines: list[tuple[str, str]]) -> Path:
    """Random weights of the first pairs."""
    generator, arrays = np.random.default_rng(1), dict[str, Any]()
    for number, (source, target) in enumerate((ours.split(), theirs.split()) for ours, theirs in lines[:PAIRS]):
        arrays |= {f"source.{number}": np.array([*source, "</s>"]), f"target.{number}": np.array(["<s>", *target])}
        rows, columns = len(target) + 1, len(source) + 1
        for kind, shape in (("encoder", (columns, columns)), ("decoder", (rows, rows)), ("cross", (rows, columns))):
            weights = generator.dirichlet(np.full(shape[1], CONCENTRATION), (LAYERS, HEADS, shape[0]))
            arrays[f"{kind}.{number}"] = np.round(255 * weights).astype(np.uint8)
    np.savez_compressed(path, **arrays)
    return path


def base_sized(folder: Path) -> Path:
    """The page of a run of base on newstest2014."""
    with ThreadPoolExecutor(1) as pool:
        wmt_like.write(str(folder / "text"), 10_000, 1, pool)
    sides = [(folder / f"text.{language}").read_text(encoding="utf-8").split("\n") for language in ("en", "de")]
    lines = list(zip(*(side[:LINES] for side in sides), strict=True))
    kept = [Line(source, target, f"{target[: len(target) // 2]} {source[:20]}", 50.0) for source, target in lines]
    curve = [(float(update), 4 + 1 / (update + 1)) for update in range(POINTS)]
    blocks = [
        Heading("base, en-de on wmt14, seed 1", 1),
        Tiles([("BLEU", "27.3", "")] * 7),
        figures.chart([figures.Panel("Loss", "update", {"training": curve})], "Loss", "loss"),
        Heading("Translations"),
        sentences.view({"translation": kept}, "en", "de"),
        Heading("Attention"),
        figures.attention(attention_file(folder / "sentences.npz", lines), ["en", "de"], []),
        Heading("Curves"),
        figures.chart([figures.Panel(str(n), "update", {"": curve}) for n in range(4)], "Curves", "curves"),
    ]
    path = folder / "report.html"
    path.write_text(page.html(blocks), encoding="utf-8")
    return path


def measure(path: Path) -> None:
    """Print the size of a page, and the seconds until its top and its views are shown."""
    print(f"{path.stat().st_size / 1e6:.2f} MB")
    with chromium() as browser:
        for attempt in range(2):
            start = time.monotonic()
            with opened(browser, path) as shown:
                shown.wait_for_selector("header [data-ready]")
                times = {"top": time.monotonic() - start}
                for kind, title in VIEWS.items():
                    section = shown.locator("summary", has_text=title)
                    if section.count():
                        begin = time.monotonic()
                        section.first.click()
                        shown.wait_for_selector(f"[data-view={kind}][data-ready]")
                        times[kind] = time.monotonic() - begin
            named = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in times.items())
            print(f"{('first', 'again')[attempt]}: {named}")


def take_pictures(path: Path, folder: Path) -> None:
    """Write report-light.png and report-dark.png: the page's box with a typed sentence, a word pointed at."""
    with chromium() as browser:
        for scheme in ("light", "dark"):
            size: Any = {"width": 1100, "height": 900}
            with opened(browser, path, color_scheme=scheme, viewport=size) as shown:
                shown.wait_for_selector("[data-view=translate][data-ready]")
                shown.locator("[data-view=translate] textarea").fill("Did you get my message?")
                shown.get_by_role("button", name="Translate", exact=True).click()
                shown.locator(".translation[data-lines]").wait_for()
                written = shown.locator("p.queries .word")
                written.nth(written.count() // 3).hover()
                shown.locator("[data-view=translate]").screenshot(path=folder / f"report-{scheme}.png")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.page", description=__doc__)
    parser.add_argument("--page", type=Path, help="measure this page instead")
    parser.add_argument("--pictures", type=Path, help="a folder for pictures of it; nothing is measured")
    options = parser.parse_args()
    chosen = options.page
    if options.pictures:
        take_pictures(chosen.absolute(), options.pictures)
        return
    announce(parser.prog)
    with tempfile.TemporaryDirectory() as folder:
        measure(chosen.absolute() if chosen else base_sized(Path(folder)))


if __name__ == "__main__":
    main()
