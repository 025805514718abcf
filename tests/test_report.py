import base64
import dataclasses
import errno
import hashlib
import importlib.resources
import io
import json
import math
import os
import re

import jinja2
import markupsafe
import numpy as np
import pytest
import torch
from PIL import Image

from fedlens.media.images import pictures
from fedlens.media.images.exhibits import Picture, averages, exhibited
from fedlens.media.text.exhibits import Sentences, Words
from fedlens.privacy import Guarantee
from fedlens.report import charts
from fedlens.report.charts import Chart
from fedlens.report.exhibits import Piece
from fedlens.report.report import VERDICTS, Finding, Report, Verdict
from fedlens.report.values import visible

GUARANTEE = Guarantee(
    epsilon=2.0, delta=1e-5, unit="user", neighbours="add/remove", sampling="Poisson", accountant="PLD"
)
HOSTILE = "\"><script>alert(1)</script><img src=x onerror=alert(1)>'{{ 7 * 7 }}"


def example(text: str = "word", **changes: object) -> Report:
    """A report with every part filled in, and `text` in every place that takes words: exhibits of all media too."""
    images = torch.linspace(-1, 1, 6 * 64).reshape(6, 1, 8, 8)
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
            Picture.of(images, run=text, label=f"left {text}", file="samples/left.png"),
            Picture.of(-images, run=text, label=f"right {text}", file="samples/right.png"),
        ),
        "charts": (
            Chart(title=text, lead=text, axis=text, categories=(text, "1"), left=(1, 2), right=(3, 4)),
            Chart(title=text, lead=text, axis=text, edges=(0, 90, 180), left=(1, 2), right=(3, 4)),
            Chart(
                title=text,
                categories=(text, "2"),
                left=(0.1, 0.2),
                right=(0.3, 0.1),
                bands=(((0, 0.2), (0.1, 0.3)), ((0.2, 0.4), (0, 0.2))),
            ),
        ),
        "words": tuple(
            {
                "label": f"{side} {text}",
                "rows": [{"word": text, "probability": 0.01, "lift": 3.5, "new": side == "left", "flags": [text]}],
            }
            for side in ("left", "right")
        ),
        "sentences": tuple(
            {"label": f"{side} {text}", "examples": [[{"text": text, "unknown": False}, {"text": "", "unknown": True}]]}
            for side in ("left", "right")
        ),
        "means": averages(((text, f"left {text}", images), (text, f"right {text}", -images))),
        "coverage": ({"summary": f"near {text}", "percent": 12.5}, {"summary": f"far {text}", "percent": None}),
        "resolved": (Finding(kind=text, summary=f"settled {text}", score=0.9, severity="high"),),
        "numbers": (
            {"name": text, "left": 0.25, "right": 1234, "note": text},
            {"name": "AUC", "left": text, "right": None},
        ),
        "hypotheses": (
            {"kind": text, "summary": f"far {text}", "distance": 0.5, "score": 0.1, "named": False},
            {"kind": text, "summary": f"near {text}", "distance": 0.1, "score": 0.8, "named": True},
            {"kind": "none", "summary": "none of these", "distance": math.nan, "score": 0.0, "named": False},
        ),
        "warnings": (f"warned {text}",),
        "provenance": {text: text, "recipe": f"task = 1\n{text}"},
    }
    content |= changes
    words, sentences, drawn, means = (content.pop(name) for name in ("words", "sentences", "pictures", "means"))
    of_text = [kind(groups=groups) for kind, groups in ((Words, words), (Sentences, sentences)) if groups]
    return Report(exhibits=(*of_text, *exhibited(drawn, means)), **content)


def exhibit_of(report: Report, key: str):
    (exhibit,) = (exhibit for exhibit in report.exhibits if exhibit.key == key)
    return exhibit


def rounds(numbers: range, *, count: int = 64, side: int = 28, classes: int = 10) -> tuple[Picture, ...]:
    """Noise, which compresses worst, of two sides at every round; tile i of round r is of class (i + r) % classes."""
    return tuple(
        Picture.of(
            torch.rand(count, 1, side, side) * 2 - 1,
            run="run",
            label=f"{name} word",
            file=f"samples/{name}-{number}.png",
            round=number,
            classes=[(tile + number) % classes for tile in range(count)],
        )
        for name in ("left", "right")
        for number in numbers
    )


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
    assert content["images"][0] == {"run": "word", "label": "left word", "file": "samples/left.png", "round": None}
    assert content["means"][2]["label"] == "difference"
    assert content["charts"][0]["categories"] == ["word", "1"]
    assert content["resolved"][0]["summary"] == "settled word"
    assert content["coverage"][1] == {"summary": "far word", "percent": None}
    assert content["created"].endswith("+00:00")
    assert content.keys() == {
        *("title", "created", "findings", "verdict", "guarantee", "runs", "images", "numbers"),
        *("hypotheses", "warnings", "provenance", "charts", "means", "coverage", "resolved"),
        *("words", "sentences"),
    }
    smallest = Report(title="empty", findings=(), guarantee=GUARANTEE).to_dict()
    assert smallest.keys() == content.keys()
    assert [smallest[key] for key in ("images", "means", "words", "sentences")] == [[]] * 4


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("well ,", "well ,"),
        ("a\0b\x1b[2J", "a␀b␛[2J"),
        ("\x7f\x85", "‹U+007F›‹U+0085›"),
        ("ab\u202ecd\u2066", "ab‹U+202E›cd‹U+2066›"),
        ("\ud800", "‹U+D800›"),
        ("zero\u200bwidth\u00a0", "zero‹U+200B›width‹U+00A0›"),
        ("e\u0301te\u0301", "e\u0301te\u0301"),
        ("\u0301a", "‹U+0301›a"),
        ("a\u0301\u0302\u0303", "a\u0301\u0302‹U+0303›"),
        ("שלום", "שלום"),
        ("w" * 81, "w" * 80 + "…"),
    ],
)
def test_letters_that_no_screen_shows_are_shown(text, shown):
    assert visible(text) == shown


def test_words_are_isolated_and_their_spaces_marked():
    rows = [{"word": "שלום ,", "probability": 0.0123, "lift": 12.3, "new": True, "flags": ["space"]}]
    page = example(words=({"label": "left word", "rows": rows}, {"label": "right word", "rows": []})).html()
    assert '<bdi class="word">שלום<span class="gap"> </span>,</bdi>' in page
    assert "1.23%" in page
    assert "&gt; 12×" in page
    assert "No word is likely enough to be shown." in page


def test_a_lone_surrogate_can_be_saved(tmp_path):
    rows = [{"word": "a\ud800\0", "probability": 0.5, "lift": 1.0, "new": False, "flags": []}]
    report = example(words=({"label": "left word", "rows": rows},))
    report.save(tmp_path)
    assert "a‹U+D800›␀" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert '"a‹U+D800›␀" 50.00%' in report.text()
    assert json.loads((tmp_path / "report.json").read_text())["words"][0]["rows"][0]["word"] == "a\ud800\0"


def test_rates_are_drawn_as_they_are_within_their_bands():
    chart = Chart(title="rates", categories=("1", "2"), left=(0.2, 0.1), bands=(((0.1, 0.3), (0.05, 0.9)),))
    page = example(charts=(chart,)).html()
    assert 'd="M25 50L75 75"' in page  # of an axis that ends at 40%
    assert 'd="M25 25L75 0L75 87.5L25 75Z"' in page
    assert "shares of its own total" not in page


@pytest.mark.parametrize(
    "changes",
    [
        {"bands": (((0, 1),),)},
        {"bands": (((0, 1), (0, 1)),) * 2},
        {"bands": (((0, 1), (0, 1)),), "edges": (0, 1, 2), "categories": ()},
    ],
)
def test_bands_must_fit_their_chart(changes):
    with pytest.raises(ValueError, match="Expected"):
        Chart(**({"title": "rates", "categories": ("1", "2"), "left": (0.2, 0.1)} | changes))


def test_nothing_generated_becomes_markup():
    page = example(HOSTILE).html()
    assert page.count("<script") == 1
    assert "<img src=x" not in page
    assert "{{ 7 * 7 }}" in page  # generated text is never a template
    # Every tag and attribute comes from the template: words change text only.
    skeleton = re.compile(r"</?[a-z][a-z0-9]*|(?<= )[a-z-]+=(?=\")")
    plain = "word" + " and" * HOSTILE.count(" ")  # the spaces of a word are marked
    assert skeleton.findall(page) == skeleton.findall(example(plain).html())
    assert page.count("&lt;script&gt;") > 20


def test_page_needs_nothing_but_itself():
    page = example().html()
    assert not re.search(r"https?:|//[a-z]|url\(|@import|<link|<iframe|<script ", page)
    assert page.index("Content-Security-Policy") < page.index("<style")
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'" in page
    assert page.count("data:image/png;base64,") == 5


def test_policy_lets_only_this_script_run_whatever_the_words():
    for text in ("word", HOSTILE):
        page = example(text).html()
        (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"script-src 'sha256-{digest}';" in page
        assert text not in script
    assert "<script" not in example(pictures=()).html()


def test_template_travels_with_the_package():
    assert importlib.resources.files("fedlens.report").joinpath("report.html").is_file()
    for exhibit in example().exhibits:
        assert exhibit.piece.template.startswith(("<section", "{%"))
        assert exhibit.piece.style


def test_page_stays_under_three_megabytes():
    noise = os.urandom(1_500_000)
    shown = [Picture(run="r", label="left word", file=f"{i}.png", png=noise) for i in range(3)]
    page = example(pictures=tuple(shown)).html()
    assert len(page.encode()) < 3_000_000
    assert page.count("too large to show here") == 2


def test_ten_rounds_of_noise_fit():
    page = example(pictures=rounds(range(10, 101, 10))).html()
    assert len(page.encode()) < 3_000_000
    assert page.count("Synthetic images of") == 20
    assert "leaves out" not in page


def test_rounds_in_the_middle_are_left_out_first():
    shown = rounds(range(10, 101, 10), side=50)
    report = example(pictures=shown)
    page = report.html()
    assert len(page.encode()) < 3_000_000
    kept = [int(number) for number in re.findall(r'data-round="(\d+)"', page)]
    assert kept == kept[: len(kept) // 2] * 2  # the same on both sides
    assert {10, 100} < set(kept)
    missing = sorted(set(range(10, 101, 10)) - set(kept))
    assert f"it leaves out rounds\n{', '.join(map(str, missing))}." in page
    assert len(report.to_dict()["images"]) == 20  # all of them lie beside the page


def test_one_round_is_shown_where_two_have_no_room(monkeypatch):
    shown = rounds(range(10, 31, 10), count=2, side=8)
    room = len(shown[2].uri) + len(shown[5].uri)
    means = sum(len(mean.uri) for mean in exhibit_of(example(), "means").pictures)
    monkeypatch.setattr("fedlens.media.images.exhibits.PICTURE_CHARACTERS", means + room)
    page = example(pictures=shown).html()
    assert re.findall(r'data-round="(\d+)"', page) == ["30", "30"]
    assert "leaves out rounds\n10, 20." in page


def test_order_of_the_page():
    page = example().html()
    ids = [
        "findings",
        "words",
        "sentences",
        "pictures",
        "means",
        "charts",
        "hypotheses",
        "numbers",
        "privacy",
        "provenance",
    ]
    assert re.findall(r'<section[^>]* id="(\w+)"', page) == ids
    assert page.index("first word") < page.index("second word") < page.index("settled word")
    assert page.index("settled word") < page.index(example().guarantee.headline)
    assert page.index("near word") < page.index("far word") < page.index("none of these")


def test_the_named_fault_and_the_runner_up_are_marked():
    rows = re.findall(
        r"<li class=\"(best|runner-up)\">.*?<span>(.*?) <span class=\"chip\">(.*?)<", example().html(), re.S
    )
    assert rows == [("best", "near word", "named"), ("runner-up", "far word", "runner-up")]
    assert "No known fault" not in example().html()


def test_a_difference_that_no_known_fault_explains():
    rows = [row | {"named": row["kind"] == "none"} for row in example().hypotheses]
    page = example(hypotheses=tuple(rows)).html()
    assert page.count("No known fault explains the difference well enough.") == 1
    assert '<span class="chip">named' not in page
    assert re.search(r'<li class="best">\s*<div class="row"><span>none of these</span>', page)


def test_rows_without_a_verdict_are_ranked_without_one():
    rows = tuple({"kind": k, "summary": k, "distance": d} for k, d in (("none", 0.5), ("inverted", 0.1)))
    page = example(hypotheses=rows).html()
    assert 'inverted <span class="chip">closest</span>' in page
    assert "No known fault" not in page


def test_what_would_be_missed():
    page = example().html()
    assert page.index("What would explain it") < page.index("What would be missed") < page.index("fewer than 12.5%")
    assert ">any share<" in page
    line = "coverage: near word on fewer than 12.5% of the group's samples would likely be missed"
    assert line in example().text()
    assert "coverage" not in example(hypotheses=()).text()
    assert "What would be missed" not in example(coverage=()).html()


def test_a_finding_that_is_resolved():
    assert "[resolved] settled word (word)" in example().text()
    assert "Finding resolved" not in example().html()
    report = example(findings=())
    assert report.text().startswith("word\n\nFinding resolved.\n[resolved] settled word (word)")
    body = report.html().split("<body>")[1]
    assert body.index("Finding resolved.") < body.index("settled word")
    assert "No known fault" not in body


def test_where_no_model_was_trained_nothing_is_said_of_groups():
    page = Report(title="none", findings=(), guarantee=GUARANTEE, warnings=("too few",)).html()
    assert "No model was trained." in page
    assert "both models" not in page
    assert "between the two groups" not in page


def test_a_guarantee_that_protects_nobody_is_announced_first():
    assert 'class="alarm"' not in example().html()
    for change, word in (({"simulated": True}, "SIMULATED"), ({"epsilon": math.inf}, "INFINITE")):
        body = example(guarantee=dataclasses.replace(GUARANTEE, **change)).html().split("<body>")[1]
        assert body.index(word) < body.index("<h1>")


def test_nothing_found():
    report = example(findings=(), resolved=())
    assert "No known fault was found between the two groups." in report.html()
    assert "warned word" in report.html()
    assert "No finding.\nwarning: warned word" in report.text()


@pytest.mark.parametrize("kind", VERDICTS)
def test_the_verdict_stands_first_on_the_page_in_the_text_and_in_json(kind):
    report = example(verdict=Verdict(kind=kind, summary=f"said of {HOSTILE}"))
    body = report.html().split("<body>")[1]
    assert body.index(kind.capitalize()) < body.index("first word")
    assert HOSTILE not in body
    assert report.text().splitlines()[2].startswith(f"{kind}: said of")
    assert report.to_dict()["verdict"] == {"kind": kind, "summary": f"said of {HOSTILE}"}


def test_a_verdict_without_a_finding_is_not_doubled_by_no_finding():
    report = example(findings=(), resolved=(), verdict=Verdict(kind="nothing differs", summary="as far as noise shows"))
    assert "No finding" not in report.text()
    assert "No known fault was found" not in report.html()


def test_a_verdict_is_one_of_four():
    with pytest.raises(ValueError, match="kind='perhaps'"):
        Verdict(kind="perhaps", summary="")


def test_one_run_alone():
    whole = example()
    chart = Chart(title="alone", edges=(0, 1), left=(3,))
    drawn, means = (exhibit_of(whole, key).pictures[:1] for key in ("images", "means"))
    alone = {"runs": whole.runs[:1], "pictures": drawn, "means": means}
    report = example(findings=(), resolved=(), charts=(chart,), hypotheses=(), **alone)
    assert report.groups == ("left word",)
    assert "No known fault was found." in report.html()
    assert "1,234" not in report.html()
    assert "1,234" not in report.text()
    assert "both models" not in report.html()
    assert "joint over both models" in whole.html()


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
    assert names(tmp_path / "run") == {"report.json", "report.html"} | {
        f"samples/{name}.png" for name in ("left", "right", "mean-left", "mean-right", "mean-difference")
    }
    content = json.loads((tmp_path / "run/report.json").read_text())
    for image in content["images"]:
        assert Image.open(tmp_path / "run" / image["file"]).format == "PNG"


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("survivors", range(7))
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


def test_picture_has_a_class_for_each_image_or_none():
    images = torch.zeros(3, 1, 8, 8)
    assert Picture.of(images, run="r", label="l", file="x.png", classes=torch.tensor([1, 0, 1])).classes == (1, 0, 1)
    with pytest.raises(ValueError, match="one class for each image"):
        Picture.of(images, run="r", label="l", file="x.png", classes=[1, 2])
    with pytest.raises(ValueError, match="columns=0"):
        Picture(run="r", label="l", file="x.png", png=b"", columns=0)


TONES = Piece(
    template="<section id='tones'>{{ marked(exhibit.label) }}, one of {{ groups | length }}</section>\n",
    style="#tones > p { color: red; }",
    script='document.title += " & tones";',
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tones:
    """An exhibit of a medium that the report has never heard of."""

    label: str = "left word"
    key: str = "tones"
    file: str = "samples/tones.wav"
    piece: Piece = TONES

    def content(self):
        return [self.label, math.inf]

    def lines(self):
        return [f"tones of {self.label}"]

    def files(self):
        return [(self.file, b"RIFF")]


def with_tones(text: str = "word", **changes: object) -> Report:
    return dataclasses.replace(
        example(text), exhibits=(*example(text).exhibits, Tones(label=f"left {text}", **changes))
    )


def test_another_medium_brings_all_that_its_exhibits_need(tmp_path):
    report = with_tones()
    report.save(tmp_path)
    assert (tmp_path / "samples/tones.wav").read_bytes() == b"RIFF"
    assert json.loads((tmp_path / "report.json").read_text())["tones"] == ["left word", "infinity"]
    assert "tones of left word" in report.text().splitlines()
    page = report.html()
    assert "<section id='tones'><span class=\"group left\">left word</span>, one of 2</section>" in page
    assert page.index('id="means"') < page.index("id='tones'") < page.index('id="charts"')
    assert "#tones > p { color: red; }\n</style>" in page


def test_the_policy_lets_the_scripts_of_all_exhibits_run_and_no_others():
    page = with_tones(HOSTILE).html()
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == page.count("<script") == 2
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts]
    assert f"script-src {' '.join(hashes)}; base-uri 'none'" in page
    assert "script-src 'none'; base-uri 'none'" in example(pictures=()).html()


def test_a_piece_is_escaped_like_the_page_and_may_leave_nothing_undefined():
    assert markupsafe.escape(f"left {HOSTILE}") in with_tones(HOSTILE).html().split("id='tones'")[1]
    raw = Piece(template="{{ exhibit.label }}")
    assert str(markupsafe.escape(HOSTILE)) in with_tones(HOSTILE, piece=raw).html()
    for template in ("{{ label }}", "{{ exhibit.unheard }}"):
        with pytest.raises(jinja2.UndefinedError):
            with_tones(piece=Piece(template=template)).html()


@pytest.mark.parametrize("file", ["../x.png", "/etc/x.png", "samples/left.png", "report.json"])
def test_no_exhibit_writes_outside_the_folder_or_over_another(file):
    with pytest.raises(ValueError, match=r"inside the folder|a file of its own"):
        with_tones(file=file)


@pytest.mark.parametrize("key", ["images", "findings", "numbers"])
def test_every_exhibit_has_a_key_of_its_own(key):
    with pytest.raises(ValueError, match="keys of their own"):
        with_tones(key=key)


def test_the_groups_are_called_as_the_runs_say():
    assert example(pictures=(), means=()).groups == ("left word", "right word")
    assert example(runs=({"label": "same"},) * 2).groups == ("A", "B")
    assert example(runs=({"label": ""},)).groups == ("A",)


def test_averages_and_their_difference():
    white, black = torch.ones(4, 1, 8, 8), -torch.ones(2, 1, 8, 8)
    half = torch.cat([black[:1], white[:1]])
    groups = (("a", "left", half), ("b", "right", black))
    centres = [np.asarray(Image.open(io.BytesIO(picture.png)))[20, 20] for picture in averages(groups)]
    assert centres == [128, 0, 128]
    assert [picture.label for picture in averages(groups[:1])] == ["left"]


@pytest.mark.parametrize(
    "content",
    [
        {"left": (1,)},
        {"left": (1,), "edges": (0, 1), "categories": ("a",)},
        {"left": (1, 2), "edges": (0, 1)},
        {"left": (1,), "right": (1, 2), "categories": ("a",)},
    ],
)
def test_chart_refuses_what_it_cannot_draw(content):
    with pytest.raises(ValueError, match="Expected"):
        Chart(title="t", **content)


def test_bars_stand_side_by_side_in_shares():
    top, (left, right) = charts.bars([[1, 3], [8, 8]])
    assert top == 0.8
    corners = [[float(x) for x in re.findall(r"[MH]([\d.]+)", path)] for path in (left, right)]
    assert corners == [[7, 25, 57, 75], [25, 43, 75, 93]]
    assert [float(y) for y in re.findall(r"V([\d.]+)H", left)] == [100 - 25 / 0.8, 100 - 75 / 0.8]
    with pytest.raises(ValueError, match="one count per category"):
        charts.bars([[1, 2], [1]])


@pytest.mark.parametrize(
    ("value", "figure"), [(0.005, "0.005"), (0.002, "0.002"), (0.00049, "0.00049"), (1.0, "1.000"), (12, "12")]
)
def test_small_p_values_stay_visible(value, figure):
    report = Report(
        title="t", findings=(), guarantee=GUARANTEE, numbers=({"name": "p", "left": value, "right": value},)
    )
    assert report.text().splitlines()[-1].split() == ["p", figure, figure]


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
    top, paths = charts.outlines([0, 1], [[math.nan]])
    assert (top, paths) == (0.01, ["M0 100V100H100V100"])
    with pytest.raises(ValueError, match="one count between"):
        charts.outlines([0, 1], [[1, 2]])
