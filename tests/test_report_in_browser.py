"""The page as a person gets it: opened from disk in a real browser, also when the generated words are hostile."""

import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import markupsafe
import pytest
import torch
from test_report import HOSTILE, example, rounds

from fedlens.media.images import pictures
from fedlens.media.images.exhibits import Picture
from fedlens.report.charts import Chart

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
# What is on the screen: for each grid the images and canvases that are shown, and how bright each of their tiles is.
SEEN = """() => [...document.querySelectorAll("#pictures figure")].map((figure) => {
  const shown = [...figure.querySelectorAll("img, canvas")].filter((one) => one.checkVisibility());
  if (shown.length !== 1) return shown.length;
  const [one] = shown;
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [one.naturalWidth ?? one.width, one.naturalHeight ?? one.height];
  const context = canvas.getContext("2d", {willReadFrequently: true});
  context.drawImage(one, 0, 0);
  const tiles = [];
  for (let y = GUTTER; y < canvas.height; y += STEP)
    for (let x = GUTTER; x < canvas.width; x += STEP) {
      const [brightness, , , opacity] = context.getImageData(x + 9, y + 9, 1, 1).data;
      if (opacity) tiles.push(brightness);
    }
  return tiles;
})"""

if not os.environ.get("CI"):  # there, a missing browser is a failure and not an excuse
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed", allow_module_level=True)


def brightness(side: int, number: int, tile: int) -> int:
    """No two tiles of a test look the same, whatever their side and round."""
    return 100 * side + number + 2 * tile


def filtered(numbers: range, *, label: str = "word", count: tuple[int, int] = (12, 12)) -> tuple[Picture, ...]:
    """Two sides with plain tiles at every round; tile i of round r is of class (i + r / 10) % 3."""
    return tuple(
        Picture.of(
            torch.tensor([brightness(side, number, tile) for tile in range(count[side])])
            .div(127.5)
            .sub(1)
            .reshape(-1, 1, 1, 1)
            .expand(-1, 1, 28, 28),
            run="run",
            label=f"{name} {label}",
            file=f"samples/{name}-{number}.png",
            round=number,
            classes=[(tile + number // 10) % 3 for tile in range(count[side])],
        )
        for side, name in enumerate(("left", "right"))
        for number in numbers
    )


def seen(page) -> list[list[int]]:
    return page.evaluate(SEEN.replace("GUTTER", str(pictures.GUTTER)).replace("STEP", str(56 + pictures.GUTTER)))


def expected(number: int, *, kind: int | None = None, count: tuple[int, int] = (12, 12)) -> list[list[int]]:
    """The tiles of a class, or the whole sprite, whose last row is filled up with grey."""
    sides = [
        [brightness(side, number, tile) for tile in range(count[side]) if kind in (None, (tile + number // 10) % 3)]
        for side in (0, 1)
    ]
    if kind is not None:
        return sides
    return [tiles + [pictures.GUTTER_GREY] * (-len(tiles) % min(8, len(tiles))) for tiles in sides]


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

    def open_report(
        text: str, *, content: dict | None = None, escaped: bool = True, **options: object
    ) -> tuple[object, list[str], list[str]]:
        example(text, **content or {}).save(tmp_path)
        if not escaped:
            written = Path(tmp_path, "report.html")
            written.write_text(written.read_text().replace(str(markupsafe.escape(text)), text))
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
    assert page.evaluate("[...document.images].map(image => image.naturalWidth > 0)") == [True] * 5
    assert page.evaluate("document.scripts.length") == 1
    assert page.locator("h1").inner_text() == text


def test_findings_come_before_pictures(opened):
    page, _, _ = opened("word")
    finding, picture = (page.locator(path).first.bounding_box()["y"] for path in ("#findings h2", "img"))
    assert finding < picture
    tops = [figure.bounding_box()["y"] for figure in page.locator("#pictures figure").all()]
    assert len(tops) == 2
    assert len(set(tops)) == 1  # side by side


@pytest.mark.parametrize("text", ["word", HOSTILE, WORD], ids=["plain", "hostile", "long"])
@pytest.mark.parametrize("width", [320, 360, 700, 1200])
def test_no_width_scrolls_sideways(opened, text, width):
    content = {"pictures": filtered(range(10, 31, 10), label=text)}
    page, _, _ = opened(text, content=content, viewport={"width": width, "height": 700})
    assert page.get_by_role("slider").is_visible()
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


def test_class_filter_hides_and_shows_tiles_in_both_grids(opened):
    page, requests, complaints = opened("word", content={"pictures": filtered(range(10, 11))})
    buttons = page.get_by_role("group", name="Show class").get_by_role("button")
    assert buttons.all_inner_texts() == ["all\n12\n12", "0\n4\n4", "1\n4\n4", "2\n4\n4"]
    assert seen(page) == expected(10)
    for kind in range(3):
        page.get_by_role("button", name=f"class {kind}, 4 left word, 4 right word").click()
        assert seen(page) == expected(10, kind=kind)
        assert page.get_by_role("button", pressed=True).all_inner_texts() == [f"{kind}\n4\n4"]
        assert page.locator("#pictures .count").all_inner_texts() == ["4 of 12"] * 2
    page.get_by_role("button", name="all").click()
    assert seen(page) == expected(10)
    assert not page.get_by_role("slider").is_visible()  # one round is no choice
    assert complaints == []
    assert [url for url in requests if not url.startswith("data:")] == [page.url]


def test_filtering_does_not_change_the_scale(opened):
    count = (12, 5)
    page, _, _ = opened("word", content={"pictures": filtered(range(10, 11), count=count)})
    assert seen(page) == expected(10, count=count)
    tile = "one => one.getBoundingClientRect().width / (one.naturalWidth ?? one.width)"
    shown = [page.locator(f"#pictures figure.{side} img").evaluate(tile) for side in ("left", "right")]
    page.get_by_role("button", name="class 2").click()
    shown += [page.locator(f"#pictures figure.{side} canvas").evaluate(tile) for side in ("left", "right")]
    assert shown == pytest.approx([shown[0]] * 4, rel=0.01)


def test_slider_switches_both_grids_and_keeps_the_class(opened):
    page, requests, complaints = opened("word", content={"pictures": filtered(range(10, 41, 10))})
    slider = page.get_by_role("slider", name="Round")
    assert seen(page) == expected(40)
    assert slider.get_attribute("aria-valuetext") == "round 40"
    slider.press("ArrowLeft")
    assert seen(page) == expected(30)
    assert page.locator(".rounds output").inner_text() == "30"
    page.get_by_role("button", name="class 1").press("Enter")
    assert seen(page) == expected(30, kind=1)
    slider.press("Home")
    assert seen(page) == expected(10, kind=1)
    page.get_by_role("button", name="all").press("Space")
    assert seen(page) == expected(10)
    assert complaints == []
    assert [url for url in requests if not url.startswith("data:")] == [page.url]


def test_a_side_that_stopped_earlier_stays_at_its_last_round(opened):
    short = tuple(
        picture for picture in filtered(range(10, 41, 10)) if picture.label == "left word" or picture.round < 30
    )
    page, _, _ = opened("word", content={"pictures": short})
    assert seen(page) == [expected(40)[0], expected(20)[1]]
    page.get_by_role("slider").press("Home")
    assert seen(page) == expected(10)


def test_a_side_of_one_picture_stays_while_the_other_moves(opened):
    whole = filtered(range(10, 41, 10))
    page, _, _ = opened("word", content={"pictures": (*whole[:4], dataclasses.replace(whole[-1], round=None))})
    slider = page.get_by_role("slider")
    assert slider.get_attribute("max") == "3"
    slider.press("Home")
    assert seen(page) == [expected(10)[0], expected(40)[1]]


def test_without_a_script_or_on_paper_the_last_round_is_shown_whole(opened):
    content = {"pictures": filtered(range(10, 41, 10))}
    page, _, _ = opened("word", content=content, java_script_enabled=False)
    assert [image.is_visible() for image in page.locator("#pictures img").all()] == [False, False, False, True] * 2
    assert not page.locator(".rounds").is_visible()
    page, _, _ = opened("word", content=content)
    page.get_by_role("button", name="class 1").click()
    page.get_by_role("slider").press("Home")
    page.emulate_media(media="print")
    assert seen(page) == expected(40)
    assert not page.get_by_role("slider").is_visible()


def test_the_policy_stops_what_escaping_would_let_through(opened):
    page, requests, complaints = opened(HOSTILE, escaped=False)
    assert page.locator("script").count() > 5  # the words did become markup
    assert page.locator("img[onerror]").count() > 5
    assert any("Content Security Policy" in complaint for complaint in complaints)
    assert not any(complaint == "1" for complaint in complaints)  # what alert(1) would have said
    assert [url for url in requests if not url.startswith(("data:", "file:"))] == []


def test_ten_rounds_of_noise_can_be_mailed_and_looked_through(opened, tmp_path):
    page, _, complaints = opened("word", content={"pictures": rounds(range(10, 101, 10))})
    assert (tmp_path / "report.html").stat().st_size < 3_000_000
    frames = []
    for _ in range(10):
        frames.append(seen(page))
        page.get_by_role("slider").press("ArrowLeft")
    assert len({str(side) for frame in frames for side in frame}) == 20
    assert [len(side) for frame in frames for side in frame] == [64] * 20
    assert complaints == []


@pytest.mark.parametrize("count", [2, 10, 62])
def test_names_stand_under_their_bars(opened, count):
    chart = Chart(title="Classes", categories=tuple(map(str, range(count))), left=(1,) * count, right=(1,) * count)
    page, _, _ = opened("word", content={"charts": (chart,)})
    boxes = [name.bounding_box() for name in page.locator(".names span").all()]
    assert 1 < len(boxes) <= 16
    assert len({box["y"] for box in boxes}) == 1
    plot = page.locator(".plot svg").bounding_box()
    assert boxes[0]["x"] == pytest.approx(plot["x"], abs=1)
    assert boxes[-1]["x"] + boxes[-1]["width"] == pytest.approx(plot["x"] + plot["width"], abs=1)
