"""How small may epsilon be, and how rare a bug of images, for it to be named? On images that may be seen."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from fedlens.experiments.drawing import COLOURS, Plot, markdown
from fedlens.experiments.trials import CLEAN, HEALTHY, SUSPICIOUS, Row

SLICES = tuple(
    f'selections.{name}={{by="attribute",attribute="release",values=[{value}]}}'
    for name, value in ((SUSPICIOUS, 1), (HEALTHY, 0))
)
BY_EXAMPLE = ("task=T2", f'selections.{SUSPICIOUS}={{by="wrong"}}', f'selections.{HEALTHY}={{by="right"}}')


def _sliced(kind: str, epsilon: float = 8.0, **changes: Any) -> Row:
    name = f"{kind.rpartition(':')[2]}-{epsilon:g}"
    return Row(name=name, kind=kind, epsilon=epsilon, sets=SLICES, how="by release", **changes)


# Cheap rows first, then those that matter most; rows that share a plan side by side, so that they share models.
ROWS: tuple[Row, ...] = (
    Row(name="inverted-1", kind="inverted", epsilon=1, wanted="4 of 5"),
    _sliced(CLEAN, 1.0, seeds=6, wanted="at most 5%"),
    Row(name="inverted-0.5", kind="inverted", epsilon=0.5),
    Row(name="inverted-0.25", kind="inverted", epsilon=0.25),
    Row(name="inverted-2", kind="inverted", epsilon=2, wanted="5 of 5"),
    Row(name="rotated-90-3", kind="rotated-90", epsilon=3),
    Row(name="inverted-8", kind="inverted", epsilon=8, wanted="5 of 5"),
    Row(name="rotated-90-8", kind="rotated-90", epsilon=8, wanted="4 of 5"),
    _sliced(CLEAN, seeds=6, wanted="at most 5%"),
    dataclasses.replace(_sliced(CLEAN, seeds=6, wanted="at most 5%"), name="unchanged-8-again", first_seed=6),
    *(
        _sliced(kind)
        for kind in ("mirrored", "upside-down", "shifted", "blurred", "low-contrast", "dead-band", "noisy")
    ),
    Row(name="inverted-20%-8", kind="inverted", fraction=0.2, epsilon=8),
    Row(name="inverted-10%-8", kind="inverted", fraction=0.1, epsilon=8),
    Row(name="inverted-by-example-8", kind="inverted", epsilon=8, sets=BY_EXAMPLE, how="by example", seeds=3),
    *(
        dataclasses.replace(
            _sliced(kind, seeds=3),
            name=f"fashion-{name}-8",
            recipe="fashion_sensitivity.toml",
            how="by release, Fashion-MNIST",
        )
        for kind, name in ((CLEAN, "unchanged"), ("inverted", "inverted"), ("rotated-90", "rotated-90"))
    ),
)


def table(results: Sequence[dict[str, Any]]) -> str:
    """As Markdown."""
    about = "bug", "devices affected", "groups", "epsilon", "rounds, critic"
    columns = *about, "named", "first", "named otherwise", "wanted"
    rows = []
    for r in results:
        score = [pair["score"] for pair in r["pairs"] if pair["first"] == r["bug"]]
        spread = f" (scores {min(score):.2f} to {max(score):.2f})" if score else ""
        named = f"{r['named']} of {r['tried']}" if r["bug"] != "none" else "-"
        first = f"{r['first']} of {r['tried']}{spread}" if r["bug"] != "none" else "-"
        otherwise = f"{r['named_otherwise']} of {r['tried']}" + (" pairs" if r["bug"] == "none" else "")
        size = f"{r['rounds']}, {'-'.join(map(str, r['critic']))}"
        run = [r["bug"], f"{r['affected']:.0%}", r["split"], f"{r['epsilon']:.2f}", size]
        rows.append([*run, named, first, otherwise, r["wanted"]])
    return markdown(columns, rows)


PLOT = Plot(
    width=600,
    height=270,
    across=lambda epsilon: 60 + 500 * (math.log2(epsilon) + 2) / 5,
    down=lambda share: 210 - 170 * share,
)


def curve(results: Sequence[dict[str, Any]]) -> str:
    """Detection against epsilon, as an SVG picture: the bugs that were tried at several epsilons, half the devices."""
    points: dict[str, list[tuple[float, float]]] = {}
    for r in results:
        if r["affected"] == 0.5 and r["split"] == "by accuracy" and r["tried"]:
            points.setdefault(r["bug"], []).append((float(r["epsilon"]), r["named"] / r["tried"]))
    lines = [_line(place, bug, sorted(listed)) for place, (bug, listed) in enumerate(points.items()) if len(listed) > 1]
    levels = {share: f"{share:.0%}" for share in (0, 0.5, 1)}
    ticks = {epsilon: f"{epsilon:g}" for epsilon in (0.25, 0.5, 1, 2, 4, 8)}
    title = "share of seeds in which the planted bug is named"
    return PLOT.picture(levels, ticks, lines, axis="user-level epsilon (delta 1e-5)", title=title)


def _line(place: int, bug: str, points: Sequence[tuple[float, float]]) -> str:
    """With its name below its end, one under the other."""
    colour = COLOURS[min(place, 1)]
    name = PLOT.label(points[-1], bug, colour, below=22 + 18 * place, anchor="end")
    return PLOT.curve(points, colour, dashed=place > 0) + name
