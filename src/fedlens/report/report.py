"""A report: findings first, then exhibits, numbers, the guarantee and the provenance; as a page, JSON and text.

In the page every value is hostile until jinja2 has escaped it.
"""

import base64
import dataclasses
import datetime
import functools
import hashlib
import importlib.resources
import json
import math
import pathlib
import textwrap
from typing import TYPE_CHECKING, Any

from fedlens.core import files
from fedlens.privacy import Guarantee
from fedlens.report import charts, ranking
from fedlens.report.charts import Chart
from fedlens.report.exhibits import Exhibit, inside
from fedlens.report.values import TableRow, aligned, figure, printable, rarity, strict, visible

if TYPE_CHECKING:
    import jinja2

SEVERITIES = ("high", "medium", "low")
FOUND, DIFFERENT, NOTHING, INCONCLUSIVE = VERDICTS = (
    "found",
    "different, unexplained",
    "nothing differs",
    "inconclusive",
)
# report.json has had these keys since before exhibits, also where there was nothing to show; its readers rely on them.
ALWAYS = ("images", "means", "words", "sentences")


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
class Verdict:
    """What a comparison of two groups comes to: one of four things, in one plain sentence.

    Where nothing differs it says what would have been missed; where it is inconclusive, what would settle it.
    """

    kind: str
    summary: str

    def __post_init__(self) -> None:
        if self.kind not in VERDICTS:
            raise ValueError(f"Expected kind={self.kind!r} in {VERDICTS}.")

    @property
    def line(self) -> str:
        return f"{self.kind}: {self.summary}"


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
    verdict: Verdict | None = None  # of two groups
    runs: tuple[TableRow, ...] = ()
    exhibits: tuple[Exhibit, ...] = ()  # in the order in which the page shows them
    numbers: tuple[TableRow, ...] = ()
    charts: tuple[Chart, ...] = ()
    hypotheses: tuple[TableRow, ...] = ()
    coverage: tuple[TableRow, ...] = ()
    resolved: tuple[Finding, ...] = ()
    warnings: tuple[str, ...] = ()
    provenance: dict[str, str] = dataclasses.field(default_factory=dict)
    created: str = dataclasses.field(
        default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    )

    def __post_init__(self) -> None:
        taken = [inside(file) for file, _ in self._files()]
        if len({"report.json", "report.html", *taken}) < 2 + len(taken):
            raise ValueError(f"Expected everything shown to have a file of its own and got {', '.join(taken)}.")
        keys = [exhibit.key for exhibit in self.exhibits]
        if len({*keys, *self._fields()}) < len(keys) + len(self._fields()):
            raise ValueError(f"Expected exhibits with keys of their own and got {', '.join(keys)}.")

    @property
    def groups(self) -> tuple[str, ...]:
        """What the left and the right group are called; one name when there is one run."""
        count = 1 if len(self.runs) == 1 else 2
        labels = tuple(dict.fromkeys(str(run["label"]) for run in self.runs if run.get("label")))[:count]
        return labels if len(labels) == count else ("A", "B")[:count]

    @property
    def ranked(self) -> tuple[Finding, ...]:
        """The gravest first; among equals, the order of the contrast."""
        return tuple(sorted(self.findings, key=lambda finding: SEVERITIES.index(finding.severity)))

    @property
    def missed(self) -> str:
        """How rare the fault that explains most would have to be to go unnoticed; empty if that was not measured."""
        closest = next((row for row in ranking.ranked(self.hypotheses) if row.get("kind") != ranking.NONE), {})
        row = next((row for row in self.coverage if row["summary"] == closest.get("summary")), None)
        if row is None:
            return ""
        return f"{row['summary']} on {rarity(row['percent'])} of the group's samples would likely be missed"

    def to_dict(self) -> dict[str, Any]:
        """The content of report.json, without anything that strict JSON cannot write."""
        replaced = {
            "findings": [dataclasses.asdict(finding) for finding in self.ranked],
            "resolved": [dataclasses.asdict(finding) for finding in self.resolved],
            "guarantee": self.guarantee.to_dict(),
            "verdict": dataclasses.asdict(self.verdict) if self.verdict else None,
            "charts": [dataclasses.asdict(chart) for chart in self.charts],
        }
        shown = {exhibit.key: exhibit.content() for exhibit in self.exhibits}
        content: dict[str, Any] = strict(self._fields() | replaced | dict.fromkeys(ALWAYS, ()) | shown)
        return content

    def html(self) -> str:
        """A page that needs nothing but itself. The piece of an exhibit is filled in and escaped like the rest."""
        import markupsafe

        page = importlib.resources.files("fedlens.report").joinpath("report.html").read_text(encoding="utf-8")
        pieces = [exhibit.piece for exhibit in self.exhibits]
        templates = [_compiled(piece.template) for piece in pieces]
        return _compiled(page).render(
            report=self,
            unbounded=not math.isfinite(self.guarantee.epsilon),
            exhibits=list(zip(self.exhibits, templates, strict=True)),
            styles=[markupsafe.Markup(style) for style in dict.fromkeys(piece.style for piece in pieces) if style],
            scripts=[markupsafe.Markup(script) for script in dict.fromkeys(piece.script for piece in pieces) if script],
            charts=[charts.drawn(chart) for chart in self.charts],
            bars=ranking.bars(self.hypotheses),
            unexplained=ranking.unexplained(self.hypotheses),
            run_keys=dict.fromkeys(key for run in self.runs for key in run),
            provenance={"created": self.created, **self.provenance},
        )

    def text(self) -> str:
        """For a terminal: findings, warnings, the guarantee, numbers in columns. No control character gets through."""
        findings = [f"[{f.severity}] {f.summary} ({f.kind}, score {figure(f.score)})" for f in self.ranked]
        settled = ("No finding.", "Finding resolved.", "Findings resolved.")[min(2, len(self.resolved))]
        said = self.verdict.line if self.verdict else ""
        lines = [
            *([self.verdict.line] if self.verdict else []),
            *(findings or ([settled] if self.resolved or not self.verdict else [])),
            *(f"[resolved] {finding.summary} ({finding.kind})" for finding in self.resolved),
            *(f"warning: {warning}" for warning in self.warnings),
            *([f"coverage: {self.missed}"] if self.missed and self.missed not in said else []),
            *(line for exhibit in self.exhibits for line in exhibit.lines()),
        ]
        filled = (textwrap.fill(printable(line), 110, subsequent_indent="    ") for line in lines)
        blocks = [
            printable(self.title),
            "\n".join(filled),
            printable(f"privacy: {self.guarantee.headline}"),
            self._columns(),
        ]
        return "\n\n".join(filter(None, blocks))

    def save(self, folder: pathlib.Path) -> None:
        """Write the exhibits' files, report.json and, last, report.html. On a full disk each is whole or as it was."""
        for file, content in self._files():
            files.write(folder / file, content)
        files.write(folder / "report.json", json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n")
        # Generated text may hold half a surrogate pair, which UTF-8 cannot write.
        files.write(folder / "report.html", self.html().encode(errors="replace"))

    def _fields(self) -> dict[str, Any]:
        names = (field.name for field in dataclasses.fields(self))
        return {name: getattr(self, name) for name in names if name != "exhibits"}

    def _files(self) -> list[tuple[str, bytes]]:
        return [pair for exhibit in self.exhibits for pair in exhibit.files()]

    def _columns(self) -> str:
        keys = ["name", "left", "right"][: 1 + len(self.groups)]
        rows = [[*(figure(row.get(key)) for key in keys), row.get("note") or ""] for row in self.numbers]
        return aligned([["", *self.groups, ""], *rows] if rows else [])


@functools.lru_cache(maxsize=64)
def _compiled(template: str) -> "jinja2.Template":
    return _environment().from_string(template)


@functools.cache
def _environment() -> "jinja2.Environment":
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"figure": figure, "rarity": rarity, "hash": _hash, "visible": visible}
    return environment


def _hash(script: str) -> str:
    """What a Content-Security-Policy calls a script that it lets run."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode('ascii')}"
