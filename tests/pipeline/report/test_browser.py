"""The report's page in Chromium: what it shows, how one uses it, and that hostile text does nothing."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import HOSTILE, expect, findings, open_sections, opened
from data_stages import write_sides

from pipeline.report import figures, page, sentences
from pipeline.report.page import Bars, Block, Bullets, Figure, Heading, Paragraph, Table, Tiles, View
from pipeline.report.sentences import Line


def lines(count: int = 3003) -> list[Line]:
    """Lines of which the first are hostile; the scores fall with the number."""
    chosen = random.Random(1)
    words = ["man", "dog", "house", "sees", "old"]
    made = [Line(text, text, text[::-1], 0.0) for text in HOSTILE]
    for number in range(len(HOSTILE), count):
        reference = " ".join(chosen.choices(words, k=12))
        made.append(Line(f"source {number}", reference, reference.replace("dog", "cat"), 100 - number / 100))
    return made


def attention_file(path: Path, layers: int = 2, heads: int = 4) -> Path:
    """Two pairs; head 1 of the last layer looks from every query at the first key, head 2 at the next two subwords."""
    arrays: dict[str, Any] = {}
    pairs = ((["the", "do@@", "g", "</s>"], ["<s>", "Hund"]), (HOSTILE[:4], HOSTILE))
    for number, (source, target) in enumerate(pairs):
        arrays |= {f"source.{number}": np.array(source), f"target.{number}": np.array(target)}
        sides = {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}
        for kind, (rows, columns) in sides.items():
            weights = np.zeros((layers, heads, len(rows), len(columns)), np.uint8)
            weights[..., -1] = 255
            weights[-1, :2] = 0
            weights[-1, 0, :, 0] = 255
            weights[-1, 1, :, 1:3] = 127
            arrays[f"{kind}.{number}"] = weights
    np.savez_compressed(path, **arrays)
    return path


def learned(folder: Path) -> View:
    """Three validations; ids are characters."""
    sides = write_sides(folder / "valid", [("one", "one"), (HOSTILE[1], "a b c")])
    written = ((10, HOSTILE[0]), (20, "a x c"), (30, "a b c"))
    records = [{"update": update, "outputs": {"1": list(map(ord, text))}} for update, text in written]
    losses = [(10.0, 5.0), (20.0, 3.0), (30.0, 1.0)]
    return figures.learning(records, losses, sides, ["en", "de"], lambda ids, _: "".join(map(chr, ids)))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with every kind of block, and hostile text wherever a run's text goes."""
    folder = tmp_path_factory.mktemp("page")
    series = {"training": [(n, 9 / (n + 1)) for n in range(100)], HOSTILE[1]: [(5, 4), (50, 2)]}
    losses = figures.Panel("Loss", "update", series)
    picture = Figure(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "c", "n")
    blocks: list[Block] = [
        Heading(HOSTILE[0], 1), Bullets([f"commit {HOSTILE[1]}"]),
        Tiles([("BLEU", "27.3", text) for text in HOSTILE[:3]]),
        figures.chart([losses], "Loss", "loss"),
        Heading("Result"), Table(("key", HOSTILE[1]), [(text, text) for text in HOSTILE]),
        Bars((HOSTILE[0], "time"), [(HOSTILE[1], 3.0, HOSTILE[2]), ("train", 6.0, "6 seconds")]),
        Paragraph(HOSTILE[0]),
        Heading("Translations"), sentences.view({"translation": lines()}, "en", "de"),
        Heading("While it trained"), learned(folder),
        Heading("Attention"), figures.attention(attention_file(folder / "sentences.npz"), ["en", "de"], [picture]),
    ]  # fmt: skip
    path = folder / "report.html"
    path.write_text(page.html(blocks), encoding="utf-8")
    return path


@pytest.fixture
def shown(browser: Any, report: Path) -> Iterator[Any]:
    """That page as one opens it."""
    with opened(browser, report) as opened_page:
        yield opened_page


@pytest.mark.parametrize(("scheme", "size"), [("light", (390, 844)), ("dark", (1280, 900))], ids=["phone", "desktop"])
def test_hostile_text_is_shown_and_axe_is_quiet(browser: Any, report: Path, scheme: Any, size: tuple[int, int]) -> None:
    viewport: Any = {"width": size[0], "height": size[1]}
    with opened(browser, report, color_scheme=scheme, viewport=viewport, bypass_csp=True) as shown:
        open_sections(shown)
        assert shown.locator("h1").text_content() == HOSTILE[0]
        cells = shown.locator("main table").first.locator("tbody tr td:first-child").all_text_contents()
        assert cells == HOSTILE
        assert shown.locator("script").count() == 5, "the script, and the data of four views"
        assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert findings(shown) == []


def test_lines_are_found_ordered_and_marked(shown: Any) -> None:
    open_sections(shown)
    section = shown.locator("[data-view=translations]")
    rows, search = section.locator(".lines > li"), section.get_by_role("searchbox")
    assert rows.count() <= 200, "lines are added as one scrolls"
    for text in HOSTILE[:4]:
        search.fill(text)
        expect(rows).to_have_count(1)
        expect(rows.locator("dd").first).to_have_text(text)
    search.fill("SOURCE 300")
    expect(section.get_by_text("4 of 3,003 lines")).to_be_visible()
    assert "line 3003" in (rows.first.text_content() or "")
    section.get_by_role("combobox", name="Order").select_option("best")
    assert "line 301" in (rows.first.text_content() or "")
    marks = rows.first.locator("mark").all_text_contents()
    assert set() < set(marks) <= {"cat", "cat cat", "cat cat cat"}
    section.get_by_role("combobox", name="Lines").select_option("exact")
    search.fill("")
    equal = sum(line.output == line.reference for line in lines())
    expect(section.get_by_text(f"{equal:,} of 3,003 lines")).to_be_visible()


def test_every_line_can_be_scrolled_to(shown: Any) -> None:
    shown.locator("summary", has_text="Translations").click()
    shown.locator("[data-view=translations]").get_by_role("combobox", name="Order").select_option("set")
    # At once as lines are added, as a key that is held down does.
    shown.evaluate("""() => {
        const listing = document.querySelector(".listing");
        const scroll = () => { listing.scrollTop = 1e6; };
        new MutationObserver(scroll).observe(document.querySelector(".lines"), { childList: true });
        scroll();
    }""")
    shown.wait_for_selector(".lines > li:nth-child(300)")


def test_attention_is_that_of_the_arrays(shown: Any) -> None:
    open_sections(shown)
    view = shown.locator("[data-view=attention]")
    said, queries = view.locator(".hint[aria-live]"), view.locator("p.queries .word")
    keys = view.locator("p.keys .word")
    assert view.locator("option").nth(0).text_content() == "the dog"
    assert queries.all_text_contents() == ["Hund", "</s>"], "a row has the word it writes"
    assert keys.all_text_contents() == ["the", "dog", "</s>"], "subwords are joined"
    assert said.text_content() == "Hund looks at the 1.00 (layer 2, head 1)", "the head that tells words apart"
    view.locator(".expert summary").click()
    view.get_by_role("button", name="layer 1, head 2").click()
    assert said.text_content() == "Hund looks at </s> 1.00 (layer 1, head 2)"
    assert view.locator(".attention line").count() == 1
    view.get_by_role("button", name="layer 2, head 2").click()
    assert said.text_content() == "Hund looks at dog 1.00 (layer 2, head 2)", "the sum over a word's subwords"
    view.get_by_role("button", name="layer 1, head 2").click()
    keys.last.click()
    queries.first.hover()
    assert said.text_content() == "</s> is looked at by Hund 1.00, </s> 1.00 (layer 1, head 2)", "it is pinned"
    keys.last.click()
    queries.last.hover()
    assert (said.text_content() or "").startswith("</s> looks at")
    view.get_by_role("combobox", name="Attention").select_option("decoder")
    assert queries.all_text_contents() == ["Hund", "</s>"]
    assert keys.all_text_contents() == ["<s>", "Hund"]
    view.get_by_role("combobox", name="Attention").select_option("encoder")
    assert queries.all_text_contents() == ["the", "dog", "</s>"]
    view.get_by_role("combobox", name="Sentence").select_option("1")
    assert keys.all_text_contents() == HOSTILE[:4]


def test_one_slides_through_the_training(shown: Any) -> None:
    open_sections(shown)
    view = shown.locator("[data-view=learning]")
    texts, slider = view.locator("dd"), view.get_by_role("slider")
    assert texts.all_text_contents() == [HOSTILE[1], HOSTILE[0], "a b c"]
    slider.press("ArrowRight")
    assert texts.nth(1).text_content() == "a x c"
    assert view.locator("mark").all_text_contents() == ["x"]
    assert view.locator("p.hint").text_content() == "After update 20: loss 3.000, perplexity 20.1."
    assert (view.locator(".legend").text_content() or "").startswith("update 20")
    view.get_by_role("button", name="Watch it learn").click()
    expect(texts.nth(1)).to_have_text("a b c")
    expect(view.get_by_role("button", name="Watch it learn")).to_be_visible()


def test_a_chart_is_read_and_zoomed_by_mouse_and_keyboard(shown: Any) -> None:
    shown.wait_for_selector("header [data-ready]")
    chart = shown.locator("header .chart")
    drawing, legend = chart.locator("svg"), chart.locator(".legend")
    drawing.focus()
    drawing.press("ArrowRight")
    assert (legend.text_content() or "").startswith("update 0training 9")
    drawing.press("ArrowRight")
    assert "update 1training 4.5" in (legend.text_content() or "")
    reset = chart.get_by_role("button", name="Whole range")
    assert not reset.is_visible()
    box: Any = drawing.bounding_box()
    middle = box["y"] + box["height"] / 2
    shown.mouse.move(box["x"] + box["width"] / 2, middle)
    shown.mouse.down()
    shown.mouse.move(box["x"] + box["width"] * 0.8, middle)
    shown.mouse.up()
    assert reset.is_visible()
    # The curve of 9 / (n + 1) no longer reaches 2.
    labels = chart.locator("svg text").all_text_contents()
    assert max(float(label) for label in labels if label.replace(".", "").isdigit() and float(label) < 10) < 3
    for _ in range(3):
        drawing.press("ArrowRight")
    read = int((legend.text_content() or "").split("training")[0].removeprefix("update "))
    assert 70 < read < 81, "the keys read what is shown, of which the right end is under the cursor"
    # Held down, plus ends at the finest step; with a modifier the keys are the browser's.
    for _ in range(60):
        drawing.press("+")
    assert chart.locator("svg text").count() < 30
    drawing.press("Control+-")
    assert reset.is_visible()
    drawing.press("Escape")
    assert not reset.is_visible()


def test_a_chart_names_the_ends_of_its_axes_and_draws_single_points(browser: Any, tmp_path: Path) -> None:
    one = figures.Panel("One", "update", {"a": [(7.0, 3.0)]})
    falling = figures.Panel("Falling", "update", {"": [(14.0, 4741.0), (1400.0, 1.5)]}, logarithmic=True)
    path = tmp_path / "page.html"
    path.write_text(page.html([Heading("t", 1), figures.chart([falling, one], "c", "n")]), encoding="utf-8")
    with opened(browser, path) as shown:
        shown.wait_for_selector(".chart text")
        labels = shown.locator(".chart").first.locator("text").all_text_contents()
        assert {"14", "1,400", "4,741", "1.5", "100"} <= set(labels)
        heights = [text.bounding_box() for text in shown.locator(".chart").first.get_by_text("100", exact=True).all()]
        assert heights[0]["y"] < shown.locator(".chart svg").first.bounding_box()["y"] + 150, "powers are equally far"
        assert shown.locator(".chart").last.locator("circle").count() == 1


def test_a_link_opens_its_section_at_the_top_and_a_line_has_an_address(shown: Any) -> None:
    shown.get_by_role("link", name="Attention").click()
    shown.wait_for_selector("[data-view=attention][data-ready]")
    assert shown.locator("details[id][open]").count() == 1
    shown.wait_for_function("document.querySelector('details[id][open]').getBoundingClientRect().top < 1")
    shown.evaluate("location.hash = 'line=158'")
    expect(shown.locator(".lines > li")).to_have_count(1)
    assert shown.locator(".lines > li a").get_attribute("href") == "#line=158"
    expect(shown.locator(".lines dd").first).to_have_text("source 157")
    shown.evaluate("location.hash = 'line=99999'")
    expect(shown.get_by_text("The set has no line 99999: it has 3,003.")).to_be_visible()


def test_everything_is_printed(shown: Any) -> None:
    shown.emulate_media(media="print")
    shown.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert shown.locator("details[id]:not([open])").count() == 0
    assert shown.locator("[data-view=translations] td").nth(3).is_visible(), "what pages without JavaScript have"
    shown.evaluate("dispatchEvent(new Event('afterprint'))")
    assert shown.locator("details[id][open]").count() == 0
    shown.locator("summary", has_text="Translations").click()
    shown.wait_for_selector(".lines > li")


def test_it_works_in_a_frame_that_may_only_run_scripts(browser: Any, report: Path, tmp_path: Path) -> None:
    """As MLflow shows the HTML files among a run's artifacts: from a blob."""
    outer, inner = tmp_path / "outer.html", json.dumps(report.read_text(encoding="utf-8")).replace("<", "\\u003c")
    source = f"URL.createObjectURL(new Blob([{inner}], {{ type: 'text/html' }}))"
    frame = '<meta charset="utf-8"><iframe sandbox="allow-scripts"></iframe>'
    outer.write_text(f"{frame}<script>document.querySelector('iframe').src = {source}</script>", encoding="utf-8")
    with opened(browser, outer) as shown:
        inside = shown.frame_locator("iframe")
        inside.locator("header [data-ready]").wait_for()
        inside.get_by_role("link", name="Attention").click()
        inside.locator("[data-view=attention][data-ready]").wait_for()


def test_without_javascript_the_page_can_be_read(browser: Any, report: Path) -> None:
    with opened(browser, report, java_script_enabled=False) as shown:
        assert shown.locator("header noscript img, header img").count() == 1
        shown.locator("summary", has_text="Translations").click()
        assert shown.locator("details[open] noscript table").bounding_box() is not None
        assert HOSTILE[2] in shown.locator("details[open] tr:has(a[href='#line=3']) td").all_text_contents()
