"""A report: findings first, then pictures, numbers, the guarantee and the provenance; as a page, JSON and text."""

import base64
import dataclasses
import datetime
import hashlib
import importlib.resources
import itertools
import json
import math
import pathlib
import textwrap
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from fedlens.core import files
from fedlens.privacy import Guarantee
from fedlens.report import pictures

SEVERITIES = ("high", "medium", "low")
PICTURE_CHARACTERS = 2_500_000  # leaves room for the words: the page stays under 3 MB, so it can be mailed
SHOWN_LETTERS = 80  # of one word
TOLD_WORDS = 10  # a side, in a terminal
NAMED_CATEGORIES = 16  # more words than this do not fit under a chart; then every second, third, ... is written


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing a modeler should know, in one plain sentence."""

    kind: str
    summary: str
    score: float
    severity: str

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES:
            raise ValueError(f"Expected severity={self.severity!r} in {SEVERITIES}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Picture:
    """Synthetic images of one run at one round, as a PNG file that is also written beside the report.

    `classes` says, tile by tile, what the primary model takes the image for; the reader can filter by it.
    """

    run: str
    label: str
    file: str
    png: bytes = dataclasses.field(repr=False)
    round: int | None = None
    classes: tuple[int, ...] = ()
    columns: int = 8

    def __post_init__(self) -> None:
        if self.columns < 1:
            raise ValueError(f"Expected columns={self.columns} >= 1.")
        path = pathlib.PurePosixPath(self.file)
        if not path.name or path.is_absolute() or ".." in path.parts or "\\" in self.file or "\0" in self.file:
            raise ValueError(f"Expected file={self.file!r} to name a file inside the folder of the report.")

    @classmethod
    def of(
        cls,
        images: torch.Tensor,
        *,
        run: str,
        label: str,
        file: str,
        round: int | None = None,
        classes: Iterable[int] = (),
        columns: int = 8,
    ) -> "Picture":
        """The sprite of `images` [n, c, h, w] in [-1, 1], with one class for each of them or none at all."""
        taken = tuple(int(name) for name in classes)
        if taken and len(taken) != len(images):
            raise ValueError("Expected one class for each image, or none at all.")
        png = pictures.png_bytes(images, columns=columns)
        return cls(run=run, label=label, file=file, png=png, round=round, classes=taken, columns=columns)

    def to_dict(self) -> dict[str, Any]:
        return {"run": self.run, "label": self.label, "file": self.file, "round": self.round}


def averages(sides: Sequence[tuple[str, str, torch.Tensor]], *, folder: str = "samples") -> tuple[Picture, ...]:
    """The mean image of each (run, label, images); of two sides also their absolute difference: black is equal."""
    means = [images.float().mean(0, keepdim=True) for _, _, images in sides]
    shown = [(run, label, mean) for (run, label, _), mean in zip(sides, means, strict=True)]
    if len(means) == 2:
        shown.append(("", "difference", (means[0] - means[1]).abs() - 1))
    names = ("left", "right", "difference")
    return tuple(
        Picture.of(mean, run=run, label=label, file=f"{folder}/mean-{name}.png")
        for (run, label, mean), name in zip(shown, names, strict=False)
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """Counts of both sides, between `edges` or per category; every side is shown in shares of its own total.

    With `bands`, the lowest and the highest plausible value per category and side, it shows rates as they are.
    """

    title: str
    left: tuple[float, ...]
    right: tuple[float, ...] | None = None
    edges: tuple[float, ...] = ()
    categories: tuple[str, ...] = ()
    lead: str = ""
    axis: str = ""
    bands: tuple[tuple[tuple[float, float], ...], ...] = ()

    def __post_init__(self) -> None:
        if bool(self.edges) == bool(self.categories):
            raise ValueError("Expected either edges or categories.")
        expected = len(self.categories) or len(self.edges) - 1
        if any(len(side) != expected for side in (*self.sides, *self.bands)):
            raise ValueError(f"Expected {expected} counts on every side.")
        if self.bands and (self.edges or len(self.bands) != len(self.sides)):
            raise ValueError("Expected categories and one band for every side, or no bands.")

    @property
    def sides(self) -> tuple[tuple[float, ...], ...]:
        return (self.left,) if self.right is None else (self.left, self.right)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What a contrast found, next to what it cost. One run alone is a sanity check; two are compared.

    >>> guarantee = Guarantee(epsilon=2.0, delta=1e-5, unit="user", neighbours="add/remove", sampling="Poisson",
    ...                       accountant="PLD")
    >>> inverted = Finding(kind="inverted", summary="Looks like inverted pixels.", score=0.97, severity="high")
    >>> row = {"name": "mean intensity", "left": 0.86, "right": 0.14, "note": "0 is black"}
    >>> print(Report(title="low vs high", findings=(inverted,), guarantee=guarantee, numbers=(row,)).text())
    low vs high
    <BLANKLINE>
    [high] Looks like inverted pixels. (inverted, score 0.970)
    <BLANKLINE>
    privacy: epsilon 2.00 at delta 1e-05 per user (add/remove)
    <BLANKLINE>
                        A      B
    mean intensity  0.860  0.140  0 is black
    """

    title: str
    findings: tuple[Finding, ...]
    guarantee: Guarantee
    runs: tuple[dict[str, Any], ...] = ()
    pictures: tuple[Picture, ...] = ()
    numbers: tuple[dict[str, Any], ...] = ()
    words: tuple[dict[str, Any], ...] = ()  # of each side: label, rows of word, probability, lift, new, flags
    sentences: tuple[dict[str, Any], ...] = ()  # of each side: label, examples of pieces {"text", "unknown"}
    charts: tuple[Chart, ...] = ()
    means: tuple[Picture, ...] = ()
    hypotheses: tuple[dict[str, Any], ...] = ()
    coverage: tuple[dict[str, Any], ...] = ()
    resolved: tuple[Finding, ...] = ()
    warnings: tuple[str, ...] = ()
    provenance: dict[str, str] = dataclasses.field(default_factory=dict)
    created: str = dataclasses.field(
        default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    )

    def __post_init__(self) -> None:
        taken = [str(pathlib.PurePosixPath(picture.file)) for picture in (*self.pictures, *self.means)]
        if len({"report.json", "report.html", *taken}) < 2 + len(taken):
            raise ValueError(f"Expected every picture to have a file of its own and got {', '.join(taken)}.")

    @property
    def sides(self) -> tuple[str, ...]:
        """What the left and the right group are called; one name when there is one run."""
        count = 1 if len(self.runs) == 1 else 2
        named = [p.label for p in self.pictures] or [str(r.get("label") or "") for r in self.runs]
        labels = tuple(dict.fromkeys(filter(None, named)))[:count]
        return labels if len(labels) == count else ("A", "B")[:count]

    @property
    def ranked(self) -> tuple[Finding, ...]:
        """The gravest first; among equals, the order of the contrast."""
        return tuple(sorted(self.findings, key=lambda finding: SEVERITIES.index(finding.severity)))

    @property
    def missed(self) -> str:
        """How rare the fault that explains most would have to be to go unnoticed; empty if that was not measured."""
        closest = next((row for row in _ranking(self.hypotheses) if row.get("kind") != "none"), {})
        row = next((row for row in self.coverage if row["summary"] == closest.get("summary")), None)
        if row is None:
            return ""
        return f"{row['summary']} on {_rarity(row['percent'])} of the group's samples would likely be missed"

    def to_dict(self) -> dict[str, Any]:
        """The content of report.json, without anything that strict JSON cannot write."""
        content = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del content["pictures"]
        replaced = {
            "findings": [dataclasses.asdict(finding) for finding in self.ranked],
            "resolved": [dataclasses.asdict(finding) for finding in self.resolved],
            "guarantee": self.guarantee.to_dict(),
            "images": [picture.to_dict() for picture in self.pictures],
            "means": [picture.to_dict() for picture in self.means],
            "charts": [dataclasses.asdict(chart) for chart in self.charts],
        }
        return _strict(content | replaced)

    def html(self) -> str:
        """A page that needs nothing but itself. Every value is hostile until jinja2 has escaped it."""
        import jinja2

        environment = jinja2.Environment(
            autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        environment.filters |= {"figure": _figure, "rarity": _rarity, "hash": _hash, "visible": visible}
        environment.filters |= {"uri": pictures.data_uri, "width": pictures.width}
        room = PICTURE_CHARACTERS - sum(len(pictures.data_uri(mean.png)) for mean in self.means)
        grids = _grids(self.pictures, room)
        page = importlib.resources.files("fedlens.report").joinpath("report.html").read_text(encoding="utf-8")
        return environment.from_string(page).render(
            report=self,
            unbounded=not math.isfinite(self.guarantee.epsilon),
            grids=grids,
            left_out=sorted(set(_rounds(self.pictures)) - set(_rounds(p for grid in grids for p, _ in grid))),
            widest=max((pictures.width(picture.png) for picture in self.pictures), default=0) or 1,
            gutter=pictures.GUTTER,
            charts=[_drawn(chart) for chart in self.charts],
            bars=_bars(self.hypotheses),
            unexplained=any("named" in row for row in self.hypotheses) and not any(map(_named, self.hypotheses)),
            run_keys=dict.fromkeys(key for run in self.runs for key in run),
            provenance={"created": self.created, **self.provenance},
        )

    def text(self) -> str:
        """For a terminal: findings, warnings, the guarantee, numbers in columns. No control character gets through."""
        found = [f"[{f.severity}] {f.summary} ({f.kind}, score {_figure(f.score)})" for f in self.ranked]
        resolved = [f"[resolved] {finding.summary} ({finding.kind})" for finding in self.resolved]
        missed = [f"coverage: {self.missed}"] if self.missed else []
        lines = [
            *(found or ["Findings resolved." if resolved[1:] else "Finding resolved." if resolved else "No finding."]),
            *resolved,
            *(f"warning: {warning}" for warning in self.warnings),
            *missed,
            *(f"likeliest words of {side['label']}: {_listed(side['rows'])}" for side in self.words),
        ]
        filled = (textwrap.fill(printable(line), 110, subsequent_indent="    ") for line in lines)
        privacy = printable(f"privacy: {self.guarantee.headline}")
        keys = ["name", "left", "right"][: 1 + len(self.sides)]
        rows = [[*(_figure(row.get(key)) for key in keys), row.get("note") or ""] for row in self.numbers]
        blocks = [
            printable(self.title),
            "\n".join(filled),
            privacy,
            _aligned([["", *self.sides, ""], *rows] if rows else []),
        ]
        return "\n\n".join(filter(None, blocks))

    def save(self, folder: pathlib.Path) -> None:
        """Write the pictures, report.json and, last, report.html. On a full disk each file is whole or as it was."""
        for picture in (*self.pictures, *self.means):
            files.write(folder / picture.file, picture.png)
        files.write(folder / "report.json", json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n")
        # Generated text may hold half a surrogate pair, which UTF-8 cannot write.
        files.write(folder / "report.html", self.html().encode(errors="replace"))


def _strict(value: Any) -> Any:
    """Arrays become lists; what JSON has no number for becomes a word, as an infinite epsilon does."""
    if hasattr(value, "tolist"):
        return _strict(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return _figure(value) if isinstance(value, float) and not math.isfinite(value) else value


def _figure(value: Any) -> str:
    """A number as a person reads it; words stay words."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if value is None:
        return "–"
    if isinstance(value, float):
        if not math.isfinite(value):
            return "nan" if math.isnan(value) else "infinity" if value > 0 else "-infinity"
        plain = value == 0 or 1e-3 <= abs(value) < 1e6
        return f"{value:,.{3 if abs(value) < 100 else 1}f}" if plain else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def printable(text: str) -> str:
    """Generated words may hold escape sequences, which a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def visible(text: str) -> str:
    """Generated words may hold what no screen shows, or what turns the words around it: such letters by their number.

    >>> visible("well" + chr(0) + chr(0x202E))
    'well␀‹U+202E›'
    """
    shown, marks = [], 2  # a mark with no letter to stand on is one too many
    for letter in text[:SHOWN_LETTERS]:
        kind, code = unicodedata.category(letter), ord(letter)
        marks = marks + 1 if kind[0] == "M" else 0
        hidden = kind[0] == "C" or (kind[0] == "Z" and letter != " ") or marks > 2
        shown.append(letter if not hidden else chr(0x2400 + code) if code < 32 else f"‹U+{code:04X}›")
    return "".join(shown) + ("…" if len(text) > SHOWN_LETTERS else "")


def _listed(rows: Iterable[Mapping[str, Any]]) -> str:
    shown = itertools.islice(rows, TOLD_WORDS)
    return ", ".join(f'"{visible(row["word"])}" {row["probability"]:.2%}' for row in shown) or "none likely enough"


def _aligned(rows: list[list[str]]) -> str:
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    padded = ([c[0].ljust(widths[0]), *map(str.rjust, c[1:-1], widths[1:]), c[-1]] for c in cells)
    return "\n".join("  ".join(row).rstrip() for row in padded)


def _hash(script: str) -> str:
    """What a Content-Security-Policy calls a script that it lets run."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode('ascii')}"


def _rarity(percent: float | None) -> str:
    return "any share" if percent is None else f"fewer than {percent:.3g}%"


def _grids(shown: Iterable[Picture], room: int) -> list[list[tuple[Picture, str | None]]]:
    """For each side its pictures, round by round, as data URIs; without one where even the last rounds have no room.

    Rounds in the middle go first, evenly: where a model began and where it ended matter most.
    """
    sides: dict[tuple[str, ...], list[tuple[Picture, str]]] = {}
    for picture in shown:
        key = (picture.run, picture.label) if picture.round is not None else (picture.run, picture.label, picture.file)
        sides.setdefault(key, []).append((picture, pictures.data_uri(picture.png)))
    whole = [sorted(side, key=lambda pair: pair[0].round or 0) for side in sides.values()]
    for most in range(max(map(len, whole), default=0), 0, -1):
        thinned = [_spaced(side, most) for side in whole]
        if sum(len(uri) for side in thinned for _, uri in side) <= room:
            return [[*side] for side in thinned]
    totals = itertools.accumulate(len(side[-1][1]) for side in whole)
    return [[(side[-1][0], side[-1][1] if total <= room else None)] for side, total in zip(whole, totals, strict=True)]


def _spaced(side: list[tuple[Picture, str]], most: int) -> list[tuple[Picture, str]]:
    """At most so many, evenly spaced, the first and the last among them; the last alone if there may be only one."""
    if len(side) <= most:
        return side
    return [side[round(index * (len(side) - 1) / (most - 1))] for index in range(most)] if most > 1 else side[-1:]


def _rounds(shown: Iterable[Picture]) -> list[int]:
    return sorted({picture.round for picture in shown if picture.round is not None})


def _drawn(chart: Chart) -> dict[str, Any]:
    """A chart as paths in a box of 100 x 100 and the words along it."""
    sides = [[float(count) for count in side] for side in chart.sides]
    edges = [float(edge) for edge in chart.edges]
    ribbons: list[str] = []
    if chart.bands:
        top, paths, ribbons = _curves(sides, chart.bands)
    else:
        top, paths = pictures.outlines(edges, sides) if edges else pictures.bars(sides)
    return {
        "chart": chart,
        "ribbons": ribbons,
        "top": top,
        "paths": paths,
        "ticks": (edges[0], (edges[0] + edges[-1]) / 2, edges[-1]) if edges else (),
        "step": math.ceil(len(chart.categories) / NAMED_CATEGORIES),
    }


def _curves(
    sides: Sequence[Sequence[float]], bands: Sequence[Sequence[tuple[float, float]]]
) -> tuple[float, list[str], list[str]]:
    """Rates per category as lines and their bands as ribbons, in the same box as bars."""
    tallest = max((rate for side in sides for rate in side), default=0.0)
    top = next((top for top in pictures.TOPS if top >= 1.1 * tallest), 1.0)
    room = 100 / len(sides[0])

    def line(rates: Iterable[float]) -> list[str]:
        return [f"{room * (i + 0.5):.4g} {100 - 100 * min(1.0, rate / top):.4g}" for i, rate in enumerate(rates)]

    paths = ["M" + "L".join(line(side)) for side in sides]
    highs, lows = ([line(pair[at] for pair in band) for band in bands] for at in (1, 0))
    return top, paths, ["M" + "L".join([*high, *reversed(low)]) + "Z" for high, low in zip(highs, lows, strict=True)]


def _ranking(hypotheses: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The smallest distance first; one that is not finite explains nothing and comes last."""
    rows = [row | {"distance": float(row["distance"])} for row in hypotheses]
    return sorted(rows, key=lambda row: row["distance"] if math.isfinite(row["distance"]) else math.inf)


def _named(row: dict[str, Any]) -> bool:
    return bool(row.get("named")) and row.get("kind") != "none"


def _bars(hypotheses: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The ranking, with the width of each bar and a word for the one that is named and for the one after it."""
    rows = _ranking(hypotheses)
    widest = max((row["distance"] for row in rows if math.isfinite(row["distance"])), default=0.0) or 1.0
    judged = any("named" in row for row in rows)
    named = next(filter(_named, rows), None)
    best = named or next((row for row in rows if row.get("kind") == "none" or not judged), None)
    runner_up = next((row for row in rows if row is not best), None) if named else None
    word = "named" if named else "" if judged else "closest"
    return [
        row
        | {
            "share": min(1.0, max(0.0, row["distance"] / widest)) if math.isfinite(row["distance"]) else 1.0,
            "best": row is best,
            "word": word if row is best else "runner-up" if row is runner_up else "",
        }
        for row in rows
    ]
