"""Histograms as outlines, classes as bars, rates as lines: drawn as paths, small enough to live inside a page."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

BAR = 0.36  # of the room of its category; two bars and the air around them fill it
TOPS = (0.01, 0.02, 0.04, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)  # where an axis may end: easy to halve in one's head
NAMED_CATEGORIES = 16  # more words than this do not fit under a chart; then every second, third, ... is written


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """Counts of both groups, between `edges` or per category; every group is shown in shares of its own total.

    With `bands`, the lowest and the highest plausible value per category and group, it shows rates as they are.
    """

    title: str
    left: tuple[float, ...]
    right: tuple[float, ...] | None = None
    edges: tuple[float, ...] = ()
    categories: tuple[str, ...] = ()
    lead: str = ""
    axis: str = ""
    bands: tuple[tuple[tuple[float, float], ...], ...] = ()
    every: int = 1  # n-th category is named, at least

    def __post_init__(self) -> None:
        if bool(self.edges) == bool(self.categories):
            raise ValueError("Expected either edges or categories.")
        expected = len(self.categories) or len(self.edges) - 1
        if any(len(group) != expected for group in (*self.groups, *self.bands)):
            raise ValueError(f"Expected {expected} counts of every group.")
        if self.bands and (self.edges or len(self.bands) != len(self.groups)):
            raise ValueError("Expected categories and one band for every group, or no bands.")

    @property
    def groups(self) -> tuple[tuple[float, ...], ...]:
        return (self.left,) if self.right is None else (self.left, self.right)


def drawn(chart: Chart) -> dict[str, Any]:
    """A chart as paths in a box of 100 x 100 and the words along it."""
    groups = [[float(count) for count in group] for group in chart.groups]
    edges = [float(edge) for edge in chart.edges]
    ribbons: list[str] = []
    if chart.bands:
        top, paths, ribbons = _curves(groups, chart.bands)
    else:
        top, paths = outlines(edges, groups) if edges else bars(groups)
    return {
        "chart": chart,
        "ribbons": ribbons,
        "top": top,
        "paths": paths,
        "ticks": (edges[0], (edges[0] + edges[-1]) / 2, edges[-1]) if edges else (),
        "step": max(chart.every, math.ceil(len(chart.categories) / NAMED_CATEGORIES)),
    }


def _curves(
    groups: Sequence[Sequence[float]], bands: Sequence[Sequence[tuple[float, float]]]
) -> tuple[float, list[str], list[str]]:
    """Rates per category as lines and their bands as ribbons, in the same box as bars."""
    tallest = max((rate for group in groups for rate in group), default=0.0)
    top = next((top for top in TOPS if top >= 1.1 * tallest), 1.0)
    room = 100 / len(groups[0])

    def line(rates: Iterable[float]) -> list[str]:
        return [f"{room * (i + 0.5):.4g} {100 - 100 * min(1.0, rate / top):.4g}" for i, rate in enumerate(rates)]

    paths = ["M" + "L".join(line(group)) for group in groups]
    highs, lows = ([line(pair[at] for pair in band) for band in bands] for at in (1, 0))
    return top, paths, ["M" + "L".join([*high, *reversed(low)]) + "Z" for high, low in zip(highs, lows, strict=True)]


def outlines(edges: Sequence[float], groups: Sequence[Sequence[float]]) -> tuple[float, list[str]]:
    """Histograms over shared edges as SVG paths in a box of 100 x 100, and the share of a group that fills the height.

    Each group is divided by its own total: groups of different size stay comparable. The page stretches the box.

    >>> outlines([0, 1, 2], [[1, 1], [0, 9]])
    (1.0, ['M0 100V50H50V50H100V100', 'M0 100V100H50V0H100V100'])
    """
    if not -math.inf < edges[0] < edges[-1] < math.inf or any(len(group) != len(edges) - 1 for group in groups):
        raise ValueError(f"Expected growing edges and one count between each two of {len(edges)}.")
    top, heights = _heights(groups)
    alongs = [f"H{100 * (edge - edges[0]) / (edges[-1] - edges[0]):.4g}" for edge in edges[1:]]
    steps = [zip((f"V{100 - 100 * height:.4g}" for height in group), alongs, strict=True) for group in heights]
    return top, ["M0 100" + "".join(itertools.chain.from_iterable(step)) + "V100" for step in steps]


def bars(groups: Sequence[Sequence[float]]) -> tuple[float, list[str]]:
    """Shares of categories as SVG paths in the same box: one bar per category and group, the groups beside each other.

    >>> bars([[1, 1], [0, 9]])[0], bars([[1]])[1]
    (1.0, ['M32 100V0H68V100'])
    """
    if len({len(group) for group in groups}) != 1 or not len(groups[0]):
        raise ValueError("Expected one count per category of every group.")
    top, heights = _heights(groups)
    room = 100 / len(groups[0])
    starts = [(index - len(groups) / 2) * BAR + 0.5 for index in range(len(groups))]
    return top, [
        "".join(
            f"M{room * (cell + start):.4g} 100V{100 - 100 * height:.4g}H{room * (cell + start + BAR):.4g}V100"
            for cell, height in enumerate(group)
        )
        for start, group in zip(starts, heights, strict=True)
    ]


def _heights(groups: Sequence[Sequence[float]]) -> tuple[float, list[list[float]]]:
    """Each group as shares of its own total, measured by the share at which the axis ends."""
    counts = [[count if math.isfinite(count) else 0.0 for count in group] for group in groups]  # a model may diverge
    shares = [[count / (sum(group) or 1) for count in group] for group in counts]
    tallest = max(itertools.chain.from_iterable(shares), default=0.0)
    top = next((top for top in TOPS if top >= tallest), 1.0)
    return top, [[share / top for share in group] for group in shares]
