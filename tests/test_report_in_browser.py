"""The page as a person gets it: opened from disk in a real browser, also when the generated words are hostile."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_report import HOSTILE, example

CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WORD = "unbreakable" * 20

if not os.environ.get("CI"):  # there, a missing browser is a failure and not an excuse
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        pytest.fail("Expected chromium on a CI machine.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Opens a report from disk; returns the page and all that it asked for and complained about."""
    contexts = []

    def open_report(text: str, **options: object) -> tuple[object, list[str], list[str]]:
        example(text).save(tmp_path)
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        requests: list[str] = []
        complaints: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
        page.goto(Path(tmp_path, "report.html").as_uri())
        return page, requests, complaints

    yield open_report
    for context in contexts:
        context.close()


@pytest.mark.parametrize("text", ["word", HOSTILE], ids=["plain", "hostile"])
def test_page_is_quiet_and_whole(opened, text):
    page, requests, complaints = opened(text)
    assert complaints == []
    assert [url for url in requests if not url.startswith("data:")] == [page.url]
    assert page.url.startswith("file:")
    assert page.evaluate("[...document.images].map(image => image.naturalWidth > 0)") == [True, True]
    assert page.evaluate("document.scripts.length") == 0
    assert page.locator("h1").inner_text() == text


def test_findings_come_before_pictures(opened):
    page, _, _ = opened("word")
    finding, picture = (page.locator(path).first.bounding_box()["y"] for path in ("#findings h2", "img"))
    assert finding < picture
    tops = [figure.bounding_box()["y"] for figure in page.locator("figure").all()]
    assert len(tops) == 2
    assert len(set(tops)) == 1  # side by side


@pytest.mark.parametrize("text", ["word", HOSTILE, WORD], ids=["plain", "hostile", "long"])
@pytest.mark.parametrize("width", [320, 375, 700, 1200])
def test_no_width_scrolls_sideways(opened, text, width):
    page, _, _ = opened(text, viewport={"width": width, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_dark_and_light_follow_the_reader(opened):
    shade = "getComputedStyle(document.body).backgroundColor"
    pages = [opened("word", color_scheme=scheme)[0] for scheme in ("light", "dark")]
    light, dark = (page.evaluate(shade) for page in pages)
    assert light != dark
    pages[1].emulate_media(media="print")
    assert pages[1].evaluate(shade) == light


def test_recipe_unfolds_without_a_script(opened):
    page, _, _ = opened("word", java_script_enabled=False)
    recipe = page.locator("details pre")
    assert not recipe.is_visible()
    page.locator("summary").click()
    assert recipe.is_visible()
