"""A report as a page that needs nothing but itself. Every value is hostile until jinja2 has escaped it."""

import base64
import hashlib
import importlib.resources
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fedlens.report import charts, ranking
from fedlens.report.values import figure, rarity, visible

if TYPE_CHECKING:
    import jinja2

    from fedlens.report.report import Report


def rendered(report: "Report") -> str:
    """The page; each exhibit brings its own piece, which is filled in and escaped like the rest."""
    import markupsafe

    environment = _environment()
    page = importlib.resources.files("fedlens.report").joinpath("report.html").read_text(encoding="utf-8")
    pieces = [exhibit.piece for exhibit in report.exhibits]
    templates = [environment.from_string(piece.template) for piece in pieces]
    return environment.from_string(page).render(
        report=report,
        unbounded=not math.isfinite(report.guarantee.epsilon),
        exhibits=list(zip(report.exhibits, templates, strict=True)),
        styles=[markupsafe.Markup(style) for style in _different(piece.style for piece in pieces)],
        scripts=[markupsafe.Markup(script) for script in _different(piece.script for piece in pieces)],
        charts=[charts.drawn(chart) for chart in report.charts],
        bars=ranking.bars(report.hypotheses),
        unexplained=ranking.unexplained(report.hypotheses),
        run_keys=dict.fromkeys(key for run in report.runs for key in run),
        provenance={"created": report.created, **report.provenance},
    )


def _environment() -> "jinja2.Environment":
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"figure": figure, "rarity": rarity, "hash": _hash, "visible": visible}
    return environment


def _different(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(filter(None, texts)))


def _hash(script: str) -> str:
    """What a Content-Security-Policy calls a script that it lets run."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode('ascii')}"
