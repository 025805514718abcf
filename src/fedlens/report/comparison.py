"""One or two groups of samples in, one report out: what every medium's contrast does alike.

Everything here reads samples only, so it costs no privacy.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from fedlens.privacy import Guarantee
from fedlens.report import ranking
from fedlens.report.charts import Chart
from fedlens.report.exhibits import Exhibit
from fedlens.report.report import DIFFERENT, FOUND, INCONCLUSIVE, NOTHING, Finding, Report, Verdict
from fedlens.report.values import TableRow

PLACES = ("left", "right")  # what report.json calls the suspicious group and the healthy one
CLEAR = 0.7  # share of the difference: a fault that explains more of it is beyond doubt
LEVEL = 0.05  # of a null: so many of its pairs may lie as far apart as those that are said to differ
FEWEST = 19  # pairs of a null: with fewer, no distance is beyond it at this level
# Models of what models drew are nearer to each other than models of data (docs/results/images.md): so much farther
# apart may two be that differ by no cause.
MARGIN = 1.5
MOST = 0.8  # share of the difference: a fault that explains it leaves a quarter of that at most
CLOSE = 0.75  # of the share that naming takes: who comes as close is not ruled out
ENOUGH = "more users or a larger epsilon would settle it"
Value = TypeVar("Value")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Null:
    """How far apart two models are that differ by no cause: by the distances of some pairs.

    The models of each pair were trained like those that are compared, on what both of these drew, taken together.
    """

    distances: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.distances) < FEWEST:
            raise ValueError(f"Expected at least {FEWEST} pairs for a null, got {len(self.distances)}.")

    def as_far(self, distance: float) -> int:
        """So many pairs, by the margin."""
        return sum(each * MARGIN >= distance for each in self.distances)

    def p_value(self, distance: float) -> float:
        """How often no cause makes such a distance; the pair in question counts as one of them.

        >>> Null(distances=tuple(range(19))).p_value(18 * MARGIN + 1)
        0.05
        """
        return (1 + self.as_far(distance)) / (1 + len(self.distances))


def compared(
    groups: Sequence[Any],
    *,
    title: str = "fedlens report",
    guarantee: Guarantee,
    findings: tuple[Finding, ...],
    hypotheses: tuple[TableRow, ...],
    missed: Callable[[], tuple[TableRow, ...]],
    failures: Sequence[str],
    exhibits: Sequence[Exhibit],
    numbers: Iterable[TableRow],
    charts: Sequence[Chart],
    warnings: Iterable[str],
    before: Iterable[Finding] = (),
    provenance: Mapping[str, str] | None = None,
    null: Null | None = None,
    alike: bool = False,
    leaves: float | None = None,
) -> Report:
    """The report of what a medium measured on its samples. From `failures`, which show nothing, nothing is concluded.

    `missed` is asked where nothing was found: how rare a fault would have to be for that. Of `before`, the findings of
    an earlier report, those that are gone are reported as resolved. For the verdict on two groups: the `null`, if there
    is one; whether the samples are so `alike` that chance alone would part them as far; and which share of the
    difference the best hypothesis `leaves`, where it is not named for that.
    """
    concluded, kinds = bool(hypotheses) and not failures, {finding.kind for finding in findings}
    report = Report(
        title=title,
        findings=findings,
        resolved=tuple(finding for finding in before if concluded and finding.kind not in kinds),
        guarantee=guarantee,
        runs=tuple(map(_run_row, groups)),
        exhibits=tuple(exhibits),
        numbers=tuple({"right": None} | row for row in numbers),
        charts=tuple(charts),
        hypotheses=hypotheses,
        coverage=missed() if concluded and not findings else (),
        warnings=(*warnings, *ranking.left_out(hypotheses)),
        provenance=dict(provenance or {}),
    )
    if len(groups) < 2 or not (hypotheses or failures):
        return report
    verdict = _verdict(report, failures, null, alike, leaves)
    coverage = () if verdict.kind == DIFFERENT else report.coverage  # nothing was missed
    return dataclasses.replace(report, verdict=verdict, coverage=coverage)


# The verdict on two groups


def small(rest: float, score: float, null: Null | None, scale: float = 0.0) -> bool:
    """Whether what a fault leaves of a distance is small: beside what it explains, or beside what no cause makes.

    For want of a null it is held against a scale of the samples themselves.

    >>> small(0.1, 0.9, None), small(0.7, 0.3, None), small(0.7, 0.3, None, scale=1.0)
    (True, False, True)
    """
    if score >= MOST:
        return True
    return null.p_value(rest) > LEVEL if null is not None else rest <= scale


def _verdict(report: Report, failures: Sequence[str], null: Null | None, alike: bool, leaves: float | None) -> Verdict:
    rows, guess = report.hypotheses, guessed(report.hypotheses)
    if failures:
        return Verdict(kind=INCONCLUSIVE, summary=_sentences(failures[0], guess, ENOUGH))  # the others are warnings
    if report.findings:
        best = next(row for row in rows if row["named"])
        where = " in both groups, in one more than in the other" if "undone" in best else ""
        return Verdict(kind=FOUND, summary=f"{best['summary']}{where}, {best['score']:.0%} of the difference")
    left = (
        ""
        if leaves is None
        else f"the fault that comes closest leaves {leaves:.0%} of the difference, too much to be the cause alone"
    )
    if null is not None:
        return _by_null(report, null, guess, left)
    if alike:
        return Verdict(kind=NOTHING, summary=_sentences("chance alone parts such samples as far", report.missed))
    if left:
        return Verdict(kind=DIFFERENT, summary=_sentences(left, guess))
    why = "the samples differ, as those of any two models do, and no known fault can be named"
    settled = f"fedlens compare --null {FEWEST} tells whether models of the same data are as far apart"
    return Verdict(kind=INCONCLUSIVE, summary=_sentences(why, guess, settled))


def _by_null(report: Report, null: Null, guess: str, left: str) -> Verdict:
    rows, pairs = report.hypotheses, len(null.distances)
    distance = next(float(row["distance"]) for row in rows if row["kind"] == ranking.NONE)
    p_value, best = null.p_value(distance), _best(rows)
    near = f"{null.as_far(distance)} of {pairs} pairs of models of the same data are"
    why = f"{near} {1 / MARGIN:.0%} as far apart, or farther"
    if p_value <= LEVEL:
        return Verdict(kind=DIFFERENT, summary=_sentences(why, left, guess))
    if best and best["score"] >= CLOSE * best.get("needed", math.inf):
        return Verdict(kind=INCONCLUSIVE, summary=_sentences(why, guess, ENOUGH))
    return Verdict(kind=NOTHING, summary=_sentences(why, report.missed))


def _best(rows: Sequence[TableRow]) -> TableRow | None:
    return next(iter(_guesses(rows)), None)


def _guesses(rows: Sequence[TableRow]) -> list[TableRow]:
    """What explains anything at all, the best first."""
    return [row for row in ranking.ranked(rows) if row["kind"] != ranking.NONE and row["score"] >= 0.01]


def guessed(rows: Sequence[TableRow]) -> str:
    """The best guess, and that it is none of ours.

    >>> guessed([ranking.hypothesis("inverted", "inverted pixels", 0.49, 1.0)])
    'not claimed: inverted pixels, 51%'
    """
    said = [f"{row['summary']}, {row['score']:.0%}" for row in _guesses(rows)[:2]]
    if said:
        return f"not claimed: {', next '.join(said)}"
    return "no known fault brings them closer" if rows else ""


def _sentences(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def _run_row(group: Any) -> TableRow:
    """What the provenance says of the run that a group's model is from."""
    return {
        "run": group.spending.account.run,
        "label": group.label,
        "releases": sum(plan.releases for plan in group.spending.plans),
        "guarantee": group.guarantee.headline,
    }


def finding(best: TableRow, seen: str, second: TableRow | None = None, affected: str = "") -> Finding:
    """The hypothesis that explains most, in a sentence: what was seen, what it looks like, what comes second."""
    runner_up = f" (runner-up: {second['summary']}, {max(0, second['score']):.0%})" if second else ""
    explained = f"which explains {best['score']:.0%} of the difference{affected}"
    return Finding(
        kind=best["kind"],
        summary=f"{seen}: looks like {best['summary']}, {explained}{runner_up}",
        score=best["score"],
        severity="high" if best["score"] > CLEAR else "medium",
    )


def by_place(values: Iterable[Value]) -> dict[str, Value]:
    """The value of the first group, and of the second if there is one, as a row of numbers or a chart has them."""
    return dict(zip(PLACES, values, strict=False))


def number(name: str, note: str, values: Iterable[Any], *, digits: int) -> TableRow:
    """A row of numbers: one value for each group, also as a tensor."""
    return {"name": name, "note": note} | by_place(round(float(value), digits) for value in values)


def failures_of(groups: Iterable[Value], why: Callable[[Value], str | None]) -> tuple[str, ...]:
    """Why nothing can be concluded from the samples of some groups; empty if something can."""
    return tuple(filter(None, map(why, groups)))
