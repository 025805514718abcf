import dataclasses
import errno
import importlib.resources
import io
import json
import math
import os
import re

import numpy as np
import pytest
import torch
from PIL import Image

from fedlens.inspection import pictures
from fedlens.inspection.report import Finding, Picture, Report
from fedlens.privacy import Guarantee

GUARANTEE = Guarantee(
    epsilon=2.0, delta=1e-5, unit="user", neighbours="add/remove", sampling="Poisson", accountant="PLD"
)
HOSTILE = "\"><script>alert(1)</script><img src=x onerror=alert(1)>'{{ 7 * 7 }}"


def example(text: str = "word", **changes: object) -> Report:
    """A report with every part filled in, and `text` in every place that takes words."""
    png = pictures.png_bytes(torch.linspace(-1, 1, 6 * 64).reshape(6, 1, 8, 8))
    content = {
        "title": text,
        "findings": (
            Finding(kind=text, summary=f"second {text}", score=0.5, severity="low"),
            Finding(kind=text, summary=f"first {text}", score=0.9, severity="high"),
        ),
        "guarantee": dataclasses.replace(
            GUARANTEE,
            **dict.fromkeys(("unit", "neighbours", "sampling", "accountant", "trust", "composition"), text),
            not_covered=(text,),
        ),
        "runs": ({"label": f"left {text}", text: text, "list": [text]}, {"label": f"right {text}", "rounds": 40}),
        "pictures": (
            Picture(run=text, label=f"left {text}", file="samples/left.png", png=png),
            Picture(run=text, label=f"right {text}", file="samples/right.png", png=png),
        ),
        "numbers": (
            {"name": text, "left": 0.25, "right": 1234, "note": text},
            {"name": "AUC", "left": text, "right": None},
        ),
        "histogram": {
            "edges": [0, 0.5, 1],
            "left": [1, 3],
            "right": [8, 2],
            "labels": [f"left {text}", f"right {text}"],
        },
        "hypotheses": (
            {"kind": text, "summary": f"far {text}", "distance": 0.5},
            {"kind": text, "summary": f"near {text}", "distance": 0.1},
            {"kind": "none", "summary": "none of these", "distance": math.nan},
        ),
        "warnings": (f"warned {text}",),
        "provenance": {text: text, "recipe": f"task = 1\n{text}"},
    }
    return Report(**content | changes)


def names(folder) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_json_is_strict_and_complete():
    numbers = ({"name": "diverged", "left": math.nan, "right": -math.inf, "note": np.float32(0.5)},)
    guarantee = dataclasses.replace(GUARANTEE, epsilon=math.inf)
    report = example(guarantee=guarantee, numbers=numbers, runs=({"epsilon": math.inf, "sizes": torch.arange(2)},))
    content = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert list(content["findings"][0]) == ["kind", "summary", "score", "severity"]
    assert content["findings"][0]["severity"] == "high"
    assert content["guarantee"]["epsilon"] == content["runs"][0]["epsilon"] == "infinity"
    assert content["runs"][0]["sizes"] == [0, 1]
    assert content["numbers"] == [{"name": "diverged", "left": "nan", "right": "-infinity", "note": 0.5}]
    assert content["images"][0] == {"run": "word", "label": "left word", "file": "samples/left.png"}
    assert content["created"].endswith("+00:00")
    assert content.keys() == {
        *("title", "created", "findings", "guarantee", "runs", "images", "numbers"),
        *("histogram", "hypotheses", "warnings", "provenance"),
    }


def test_nothing_generated_becomes_markup():
    page = example(HOSTILE).html()
    assert "<script" not in page
    assert "<img src=x" not in page
    assert "{{ 7 * 7 }}" in page  # generated text is never a template
    # Every tag and attribute comes from the template: words change text only.
    skeleton = re.compile(r"</?[a-z][a-z0-9]*|(?<= )[a-z-]+=(?=\")")
    assert skeleton.findall(page) == skeleton.findall(example().html())
    assert page.count("&lt;script&gt;") > 20


def test_page_needs_nothing_but_itself():
    page = example().html()
    assert not re.search(r"https?:|//[a-z]|url\(|@import|<link|<iframe|<script", page)
    assert page.index("Content-Security-Policy") < page.index("<style")
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'" in page
    assert page.count("data:image/png;base64,") == 2


def test_template_travels_with_the_package():
    assert importlib.resources.files("fedlens.inspection").joinpath("report.html").is_file()


def test_page_stays_under_three_megabytes():
    noise = os.urandom(1_500_000)
    shown = [Picture(run="r", label="left word", file=f"{i}.png", png=noise) for i in range(3)]
    page = example(pictures=tuple(shown)).html()
    assert len(page.encode()) < 3_000_000
    assert page.count("too large to show here") == 2


def test_order_of_the_page():
    page = example().html()
    ids = ["findings", "pictures", "histogram", "hypotheses", "numbers", "privacy", "provenance"]
    assert re.findall(r'<section[^>]* id="(\w+)"', page) == ids
    assert page.index("first word") < page.index("second word") < page.index(example().guarantee.headline)
    assert page.index("near word") < page.index("far word") < page.index("none of these")
    assert '<li class="best">' in page.split("near word")[0]


def test_a_guarantee_that_protects_nobody_is_announced_first():
    assert 'class="alarm"' not in example().html()
    for change, word in (({"simulated": True}, "SIMULATED"), ({"epsilon": math.inf}, "INFINITE")):
        body = example(guarantee=dataclasses.replace(GUARANTEE, **change)).html().split("<body>")[1]
        assert body.index(word) < body.index("<h1>")


def test_nothing_found():
    report = example(findings=())
    assert "Nothing to report: the two groups look alike." in report.html()
    assert "warned word" in report.html()
    assert "No finding.\nwarning: warned word" in report.text()


def test_one_run_alone():
    whole = example()
    histogram = {"edges": [0, 1], "left": [3], "right": None, "labels": ["left word"]}
    report = example(findings=(), runs=whole.runs[:1], pictures=whole.pictures[:1], histogram=histogram, hypotheses=())
    assert report.sides == ("left word",)
    assert "Nothing to report." in report.html()
    assert "1,234" not in report.html()
    assert "1,234" not in report.text()


def test_the_smallest_report():
    report = Report(title="empty", findings=(), guarantee=GUARANTEE)
    assert "<h1>empty</h1>" in report.html()
    assert report.text() == f"empty\n\nNo finding.\n\nprivacy: {GUARANTEE.headline}"


def test_text_is_aligned_and_obeys_no_escape():
    text = example("\x1b[31mred\n\u202e").text()
    assert all(letter.isprintable() for line in text.splitlines() for letter in line)
    lines = example().text().splitlines()
    assert lines[2].startswith("[high] first word")
    head, row = lines[-3:-1]
    assert head.index("left word") + len("left word") == row.index("0.250") + len("0.250")
    assert head.index("right word") + len("right word") == row.index("1,234") + len("1,234")


def test_save_writes_everything(tmp_path):
    example("\ud800").save(tmp_path / "run")
    assert names(tmp_path / "run") == {"report.json", "report.html", "samples/left.png", "samples/right.png"}
    content = json.loads((tmp_path / "run/report.json").read_text())
    for image in content["images"]:
        assert Image.open(tmp_path / "run" / image["file"]).format == "PNG"


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("survivors", range(4))
def test_a_full_disk_leaves_no_half_file(tmp_path, monkeypatch, call, survivors):
    example("old").save(tmp_path)
    old, page = names(tmp_path), (tmp_path / "report.html").read_text()
    original, calls = getattr(os, call), []

    def full(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) > survivors:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(*arguments)

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space left") as caught:
        example("new").save(tmp_path)
    assert caught.value.errno == errno.ENOSPC
    assert names(tmp_path) == old
    assert (tmp_path / "report.html").read_text() == page  # the page comes last: it never shows what is not there
    json.loads((tmp_path / "report.json").read_text())


def test_a_full_disk_leaves_an_empty_folder_empty(tmp_path, monkeypatch):
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        example().save(tmp_path)
    assert names(tmp_path) == set()


@pytest.mark.parametrize("file", ["", "/etc/x.png", "../x.png", "a/../../x.png", "a\\..\\x.png", "x\0.png"])
def test_pictures_stay_inside_the_folder(file):
    with pytest.raises(ValueError, match="inside the folder"):
        Picture(run="r", label="l", file=file, png=b"")


@pytest.mark.parametrize("file", ["report.html", "./report.json", "samples//left.png"])
def test_pictures_overwrite_nothing(file):
    one, other = (Picture(run="r", label="l", file=name, png=b"") for name in ("samples/left.png", file))
    with pytest.raises(ValueError, match="a file of its own"):
        example(pictures=(one, other))


def test_severity_is_one_of_three():
    with pytest.raises(ValueError, match="severity='grave'"):
        Finding(kind="k", summary="s", score=1.0, severity="grave")


@pytest.mark.parametrize(
    ("shape", "mode", "size"), [((3, 1, 8, 8), "L", (152, 52)), ((9, 3, 28, 28), "RGB", (466, 118))]
)
def test_grid(shape, mode, size):
    image = Image.open(io.BytesIO(pictures.png_bytes(torch.ones(shape))))
    assert (image.mode, image.size) == (mode, size)
    assert image.convert("L").getextrema() == (pictures.GUTTER_GREY, 255)


def test_grid_keeps_the_order_and_survives_a_diverged_model():
    values = torch.tensor([-1.0, 1.0, -9.0, math.inf, math.nan]).reshape(5, 1, 1, 1).expand(5, 1, 8, 8)
    pixels = np.asarray(pictures.grid(values, columns=2))
    centres = [pixels[row, column] for row in (20, 70, 120) for column in (20, 70)]
    assert centres == [0, 255, 0, 255, 128, pictures.GUTTER_GREY]
    assert np.unique(pixels[2:50, 2:50]).tolist() == [0]


@pytest.mark.parametrize("shape", [(2, 8, 8), (2, 2, 8, 8), (0, 1, 8, 8)])
def test_grid_refuses_other_shapes(shape):
    with pytest.raises(ValueError, match="Expected images of shape"):
        pictures.grid(torch.zeros(shape))


def test_histogram_of_a_diverged_model_is_flat():
    top, paths = pictures.outlines([0, 1], [[math.nan]])
    assert (top, paths) == (0.01, ["M0 100V100H100V100"])
    with pytest.raises(ValueError, match="one count between"):
        pictures.outlines([0, 1], [[1, 2]])
