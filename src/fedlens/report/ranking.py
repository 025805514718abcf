"""Hypotheses: what would explain a difference, and how well. "None of these" competes like any other.

A row says how far the healthy group's samples, once changed by a known fault, are from the suspicious group's, and
which share of the distance that explains. What a distance is, and when it is short enough, the medium knows.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from fedlens.report.values import TableRow

NONE = "none"  # the kind of "none of these"
Samples = TypeVar("Samples")


def none_of_these(distance: float, **more: Any) -> TableRow:
    return {"kind": NONE, "summary": "none of these", "distance": distance, "score": 0.0, **more}


def hypothesis(kind: str, summary: str, distance: float, nothing: float, **more: Any) -> TableRow:
    """`nothing` is the distance without any fault. An infinite distance is that of a fault that failed.

    >>> hypothesis("inverted", "inverted pixels", 0.5, 2.0)["score"]
    0.75
    """
    score = round(max(1 - distance / nothing, -999.0), 4) + 0.0  # no -0
    return {"kind": kind, "summary": summary, "distance": distance, "score": score, **more}


def in_order(rows: Iterable[TableRow], enough: Callable[[TableRow], bool]) -> tuple[TableRow, ...]:
    """The closest first, and whether it is named: whether it explains enough."""
    ordered = sorted(rows, key=lambda row: (row["distance"], row["kind"] != NONE))
    return tuple(row | {"named": row is ordered[0] and row["kind"] != NONE and enough(row)} for row in ordered)


def named_where(rows: Iterable[TableRow], holds: Callable[[TableRow], bool]) -> tuple[TableRow, ...]:
    """The same rows; of those that are named, only those of which it holds still are."""
    return tuple(row | {"named": row["named"] and holds(row)} for row in rows)


def attempted(fault: Callable[[Samples], Any], samples: Samples) -> Any:
    """What a fault makes of samples; None if it fails. It may be anybody's function, so it prints nothing."""
    try:
        with contextlib.redirect_stdout(None):
            return fault(samples)
    except Exception:
        return None


def left_out(rows: Iterable[TableRow]) -> tuple[str, ...]:
    """A warning for each hypothesis that failed."""
    failed = (row["kind"] for row in rows if not math.isfinite(row["distance"]))
    return tuple(f"the hypothesis {kind} failed on the samples and was left out" for kind in failed)


# What a page shows of them


def ranked(rows: Iterable[TableRow]) -> list[TableRow]:
    """The smallest distance first; one that is not finite explains nothing and comes last."""
    plain = [row | {"distance": float(row["distance"])} for row in rows]
    return sorted(plain, key=lambda row: row["distance"] if math.isfinite(row["distance"]) else math.inf)


def unexplained(rows: Sequence[TableRow]) -> bool:
    """Whether the rows were judged, and none of them is good enough."""
    return any("named" in row for row in rows) and not any(map(_named, rows))


def _named(row: TableRow) -> bool:
    return bool(row.get("named")) and row.get("kind") != NONE


def bars(hypotheses: Iterable[TableRow]) -> list[TableRow]:
    """The ranking, with the width of each bar and a word for the one that is named and for the one after it."""
    rows = ranked(hypotheses)
    widest = max((row["distance"] for row in rows if math.isfinite(row["distance"])), default=0.0) or 1.0
    judged = any("named" in row for row in rows)
    named = next(filter(_named, rows), None)
    best = named or next((row for row in rows if row.get("kind") == NONE or not judged), None)
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
