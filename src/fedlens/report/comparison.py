"""One or two groups of samples in, one report out: what every medium's contrast does alike.

Everything here reads samples only, so it costs no privacy.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from fedlens.privacy import Guarantee
from fedlens.report import ranking
from fedlens.report.charts import Chart
from fedlens.report.exhibits import Exhibit
from fedlens.report.report import Finding, Report
from fedlens.report.values import TableRow

PLACES = ("left", "right")  # what report.json calls the suspicious group and the healthy one
CLEAR = 0.7  # share of the difference: a fault that explains more of it is beyond doubt
Value = TypeVar("Value")


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
) -> Report:
    """The report of what a medium measured on its samples. From `failures`, which show nothing, nothing is concluded.

    `missed` is asked where nothing was found: how rare a fault would have to be for that. Of `before`, the findings of
    an earlier report, those that are gone are reported as resolved.
    """
    concluded, kinds = bool(hypotheses) and not failures, {finding.kind for finding in findings}
    return Report(
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
