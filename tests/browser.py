import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
PATIENCE = 60_000  # milliseconds that a page may take to do what a test waits for, on a busy machine

HOSTILE = [
    "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<!--<script>", "]]>{{ 7 * 7 }}${alert(1)}",
    "\u202eright to left \u2067\u05d0\u05d1\u05d2", "line\u2028separator\u2029", "javascript:alert(1)",
    "x" * 10_000, "&lt;b&gt; &amp; \"quoted\" 'quoted'", "\U0001f600 \U0010ffff",
]  # fmt: skip
"""Text that a page must show and never run."""


@contextmanager
def chromium() -> Iterator[Any]:
    """The system's Chromium; skips the test where there is none."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("Chromium is not installed: `apt-get install chromium`, or another of " + ", ".join(NAMES))
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=OPTIONS)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, path: Path, **options: Any) -> Iterator[Any]:
    """The page of a file. Fails afterwards if a script failed or was refused, or if anything else was requested."""
    address = path.as_uri()
    allowed = (address, "data:image/svg+xml", "blob:", "about:srcdoc")
    context = browser.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("dialog", lambda dialog: problems.append(dialog.message))
    page.on("request", lambda request: None if request.url.startswith(allowed) else problems.append(request.url))
    page.goto(address)
    yield page
    context.close()
    assert not problems, problems


def expect(locator: Any) -> Any:
    """Playwright's assertions, which wait; importing them takes as long as it does to import a browser's driver."""
    from playwright.sync_api import expect as assertions

    return assertions(locator)


def open_sections(page: Any) -> None:
    """Open all sections and wait until their views are built."""
    page.evaluate("document.querySelectorAll('details').forEach((section) => { section.open = true; })")
    expect(page.locator("[data-ready]")).to_have_count(page.locator("[data-view]").count(), timeout=PATIENCE)


def findings(page: Any) -> list[tuple[str, str]]:
    """The findings of axe: rule and element. The page has to be opened with bypass_csp."""
    from axe_playwright_python.sync_playwright import Axe

    violations = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [(violation["id"], violation["nodes"][0]["html"][:200]) for violation in violations]
