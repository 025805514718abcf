"""A report: findings first, then pictures, numbers, the guarantee and the provenance; as a page, JSON and text."""

import dataclasses
import datetime
import importlib.resources
import itertools
import json
import math
import pathlib
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from fedlens import files
from fedlens.inspection import pictures
from fedlens.privacy import Guarantee

SEVERITIES = ("high", "medium", "low")
PICTURE_CHARACTERS = 2_500_000  # leaves room for the words: the page stays under 3 MB, so it can be mailed


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
    """Synthetic images of one run, as a PNG file that is also written beside the report."""

    run: str
    label: str
    file: str
    png: bytes = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        path = pathlib.PurePosixPath(self.file)
        if not path.name or path.is_absolute() or ".." in path.parts or "\\" in self.file or "\0" in self.file:
            raise ValueError(f"Expected file={self.file!r} to name a file inside the folder of the report.")


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
    histogram: dict[str, Any] | None = None
    hypotheses: tuple[dict[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()
    provenance: dict[str, str] = dataclasses.field(default_factory=dict)
    created: str = dataclasses.field(
        default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    )

    def __post_init__(self) -> None:
        taken = [str(pathlib.PurePosixPath(picture.file)) for picture in self.pictures]
        if len({"report.json", "report.html", *taken}) < 2 + len(taken):
            raise ValueError(f"Expected every picture to have a file of its own and got {', '.join(taken)}.")

    @property
    def sides(self) -> tuple[str, ...]:
        """What the left and the right group are called; one name when there is one run."""
        count = 1 if len(self.runs) == 1 else 2
        named = (
            (self.histogram or {}).get("labels")
            or [p.label for p in self.pictures]
            or [r.get("label") for r in self.runs]
        )
        labels = tuple(dict.fromkeys(str(label) for label in named if label))[:count]
        return labels if len(labels) == count else ("A", "B")[:count]

    @property
    def ranked(self) -> tuple[Finding, ...]:
        """The gravest first; among equals, the order of the contrast."""
        return tuple(sorted(self.findings, key=lambda finding: SEVERITIES.index(finding.severity)))

    def to_dict(self) -> dict[str, Any]:
        """The content of report.json, without anything that strict JSON cannot write."""
        content = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        images = [{"run": p.run, "label": p.label, "file": p.file} for p in content.pop("pictures")]
        findings = [dataclasses.asdict(finding) for finding in self.ranked]
        return _strict(content | {"findings": findings, "guarantee": self.guarantee.to_dict(), "images": images})

    def html(self) -> str:
        """A page that needs nothing but itself. Every value is hostile until jinja2 has escaped it."""
        import jinja2

        environment = jinja2.Environment(
            autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        environment.filters["figure"] = _figure
        page = importlib.resources.files("fedlens.inspection").joinpath("report.html").read_text(encoding="utf-8")
        return environment.from_string(page).render(
            report=self,
            unbounded=not math.isfinite(self.guarantee.epsilon),
            shown=_shown(self.pictures),
            chart=_chart(self.histogram),
            bars=_bars(self.hypotheses),
            run_keys=dict.fromkeys(key for run in self.runs for key in run),
            provenance={"created": self.created, **self.provenance},
        )

    def text(self) -> str:
        """For a terminal: findings, warnings, the guarantee, numbers in columns. No control character gets through."""
        found = [f"[{f.severity}] {f.summary} ({f.kind}, score {_figure(f.score)})" for f in self.ranked]
        lines = [*(found or ["No finding."]), *(f"warning: {warning}" for warning in self.warnings)]
        filled = (textwrap.fill(_printable(line), 110, subsequent_indent="    ") for line in lines)
        privacy = _printable(f"privacy: {self.guarantee.headline}")
        keys = ["name", "left", "right"][: 1 + len(self.sides)]
        rows = [[*(_figure(row.get(key)) for key in keys), row.get("note") or ""] for row in self.numbers]
        blocks = [
            _printable(self.title),
            "\n".join(filled),
            privacy,
            _aligned([["", *self.sides, ""], *rows] if rows else []),
        ]
        return "\n\n".join(filter(None, blocks))

    def save(self, folder: pathlib.Path) -> None:
        """Write the pictures, report.json and, last, report.html. On a full disk each file is whole or as it was."""
        for picture in self.pictures:
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


def _printable(text: str) -> str:
    """Generated words may hold escape sequences, which a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _aligned(rows: list[list[str]]) -> str:
    cells = [[_printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    padded = ([c[0].ljust(widths[0]), *map(str.rjust, c[1:-1], widths[1:]), c[-1]] for c in cells)
    return "\n".join("  ".join(row).rstrip() for row in padded)


def _shown(shown: Iterable[Picture]) -> list[tuple[Picture, str | None]]:
    """Pictures as data URIs while there is room in the page; the rest are named only."""
    uris = [(picture, pictures.data_uri(picture.png)) for picture in shown]
    totals = itertools.accumulate(len(uri) for _, uri in uris)
    return [(p, uri if total <= PICTURE_CHARACTERS else None) for (p, uri), total in zip(uris, totals, strict=True)]


def _chart(histogram: dict[str, Any] | None) -> dict[str, Any] | None:
    if not histogram:
        return None
    edges = [float(edge) for edge in histogram["edges"]]
    counts = [histogram.get(side) for side in ("left", "right")]
    top, paths = pictures.outlines(edges, [[float(count) for count in side] for side in counts if side is not None])
    return {"top": top, "paths": paths, "ticks": (edges[0], (edges[0] + edges[-1]) / 2, edges[-1])}


def _bars(hypotheses: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The smallest distance first; one that is not finite explains nothing and comes last."""
    rows = [row | {"distance": float(row["distance"])} for row in hypotheses]
    finite = [row for row in rows if math.isfinite(row["distance"])]
    widest = max((row["distance"] for row in finite), default=0.0) or 1.0
    bars = [
        row | {"share": max(0.0, row["distance"]) / widest} for row in sorted(finite, key=lambda row: row["distance"])
    ]
    return bars + [row | {"share": 1.0} for row in rows if row not in finite]
