"""Two sets of DP samples in, one report out: do they differ, how, and which known bug explains it?

Everything here reads samples only, so it costs no privacy.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from fedlens.ledger import guarantee
from fedlens.media.images import exhibits, hypotheses, measures
from fedlens.media.images.faults import FAULTS
from fedlens.media.images.measures import TwoSample
from fedlens.media.images.samples import Samples
from fedlens.models.classifier import Primary
from fedlens.report import comparison, ranking
from fedlens.report.charts import Chart
from fedlens.report.comparison import by_place
from fedlens.report.report import Finding, Report
from fedlens.report.values import TableRow

COMPARED = 512  # samples a group
DIGITS = 4
SIGNIFICANT = 0.05
SMOOTH = 0.1  # neighbouring pixels of any picture agree more than this; those of noise do not
COLLAPSED = 4.0  # different pictures in effect
VARIETY = "different pictures"
OF_LABELS = {kind for kind, fault in FAULTS.known.items() if fault.labels}  # these leave the images alone
# What the two-sample tests are called, and what their numbers say.
TESTS = {
    "two-sample AUC": "a linear classifier between the groups: 0.5 tells nothing apart, 1 everything",
    "kernel distance, pixels": "maximum mean discrepancy",
    "kernel distance, features": "the same of random convolutions",
}


def contrast(
    left: Samples,
    right: Samples | None = None,
    *,
    title: str = "fedlens report",
    primary: Primary | None = None,
    kinds: Sequence[str] = (),
    glimpses: Sequence[Samples] = (),
    before: Sequence[Finding] = (),
    coverage: bool = True,
    warnings: tuple[str, ...] = (),
    provenance: dict[str, str] | None = None,
) -> Report:
    """`left` is the suspicious group, `right` the healthy one; with one group alone, a sanity check (T1).

    `kinds` are further hypotheses (package.module:function), `glimpses` what the models drew in earlier rounds,
    `before` the findings of an earlier report: those that are gone are reported as resolved. `coverage` takes seconds.
    """
    groups: tuple[Samples, ...] = (left,) if right is None else (left, right)
    if len({group.images.shape[1:] for group in groups}) > 1:
        raise ValueError("Expected samples of one size to compare.")
    # A model that diverged has spent its budget all the same: what it drew is shown as mid grey, and said.
    failures = comparison.failures_of(groups, _failure)
    groups = tuple(_finite(group) for group in groups)
    asked = primary if primary and (primary.side, primary.channels) == _size(groups[0]) else None
    tests = _tests(groups)
    alike = not any(test.p_value <= SIGNIFICANT for test in tests)  # chance alone would part the images as far
    rows = ranking.named_where(
        _hypotheses(groups, asked, kinds), lambda row: not failures and (row["kind"] in OF_LABELS or not alike)
    )
    numbers = [*_numbers(groups, asked), *_test_rows(tests)]
    return comparison.compared(
        groups,
        title=title,
        guarantee=guarantee([group.spending for group in groups], max(group.delta for group in groups)),
        findings=_findings(rows, numbers),
        hypotheses=rows,
        missed=lambda: _missed(groups, kinds) if coverage else (),
        failures=failures,
        before=before,
        exhibits=exhibits.exhibited(
            exhibits.drawn_by([*map(_finite, glimpses), *groups], asked),
            exhibits.averages([(group.spending.account.run, group.label, group.images) for group in groups]),
        ),
        numbers=numbers,
        charts=_charts(groups, asked),
        warnings=(*warnings, *failures, *_collapsed(groups, numbers)),
        provenance=provenance,
    )


def _finite(group: Samples) -> Samples:
    return dataclasses.replace(group, images=group.images.nan_to_num(0, 1, -1))


def _size(group: Samples) -> tuple[int, int]:
    return group.images.shape[-1], group.images.shape[1]


# What explains it


def _hypotheses(groups: Sequence[Samples], primary: Primary | None, kinds: Sequence[str]) -> tuple[TableRow, ...]:
    if len(groups) < 2:
        return ()
    left, right = (group.images[:COMPARED] for group in groups)
    rows = hypotheses.ranked(left, right, (*FAULTS.known, *kinds))
    drawn = [group.classes for group in groups if group.classes is not None]
    if primary is None or len(drawn) < 2:
        return rows
    left_seen, right_seen = (
        (classes, primary.predictions(group.images)) for classes, group in zip(drawn, groups, strict=True)
    )
    nothing = next(row["distance"] for row in rows if row["kind"] == ranking.NONE)
    return ranking.in_order([*rows, *hypotheses.swapped(left_seen, right_seen, nothing)], hypotheses.enough)


def _findings(rows: Sequence[TableRow], numbers: Sequence[TableRow]) -> tuple[Finding, ...]:
    best = next((row for row in rows if row["named"]), None)
    if best is None:
        return ()
    by_name = {row["name"]: row for row in numbers}
    intensity, auc = by_name["mean intensity"], by_name["two-sample AUC"]["left"]
    mirrored = "histogram mirrored, " if best["kind"] == "inverted" else ""
    seen = f"mean intensity {intensity['left']:.2f} vs {intensity['right']:.2f}, {mirrored}two-sample AUC {auc:.2f}"
    if best["kind"] in OF_LABELS:
        seen = "the primary model disagrees with the labels that were drawn"
    second = rows[1] if rows[1]["kind"] != ranking.NONE else None
    return (comparison.finding(best, seen, second),)


def _missed(groups: Sequence[Samples], kinds: Sequence[str]) -> tuple[TableRow, ...]:
    left, right = (group.images[:COMPARED] for group in groups)
    return hypotheses.missed(left, right, (*FAULTS.known, *kinds))


# What differs


def _numbers(groups: Sequence[Samples], primary: Primary | None) -> list[TableRow]:
    measured: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
        "mean intensity": (lambda x: (x.mean() + 1) / 2, "0 is black, 1 is white"),
        "bright pixels": (lambda x: (x > 0).float().mean(), "share of pixels in the upper half"),
        "spread": (measures.spread, "mean distance between two samples, per pixel"),
        VARIETY: (measures.distinct, f"in effect, of {COMPARED}; near 1 means one again and again"),
    }
    if primary is not None:
        measured["primary model's confidence"] = (lambda x: primary.confidence(x).mean(), "mean top class probability")
    images = [group.images[:COMPARED] for group in groups]
    rows = [_number(name, note, map(of, images)) for name, (of, note) in measured.items()]
    if primary is not None and all(group.classes is not None for group in groups):
        note = "how often it sees the class the sample was drawn as"
        rows.append(_number("primary model's accuracy", note, (_accuracy(group, primary) for group in groups)))
    return rows


def _number(name: str, note: str, values: Iterable[Any]) -> TableRow:
    return comparison.number(name, note, map(float, values), digits=DIGITS)


def _accuracy(group: Samples, primary: Primary) -> torch.Tensor:
    return (primary.predictions(group.images[:COMPARED]) == group.classes[:COMPARED]).float().mean()  # type: ignore[index]


def _tests(groups: Sequence[Samples]) -> list[TwoSample]:
    """Whether the two sets of samples differ at all. Two models of the same data usually do: this names nothing."""
    if len(groups) < 2:
        return []
    left, right = (group.images[:COMPARED] for group in groups)
    return [
        measures.classifier_test(left, right),
        measures.mmd_test(left, right),
        measures.mmd_test(left, right, features=measures.random_features),
    ]


def _test_rows(tests: Sequence[TwoSample]) -> list[TableRow]:
    about = zip(TESTS.items(), tests, strict=False)  # one group alone has no tests
    return [
        {"name": name, "left": round(test.statistic, DIGITS), "note": f"{note}; permutation p-value {test.p_value:.3f}"}
        for (name, note), test in about
    ]


def _charts(groups: Sequence[Samples], primary: Primary | None) -> tuple[Chart, ...]:
    images = [group.images[:COMPARED] for group in groups]

    def shares(of: Any) -> dict[str, Any]:
        return by_place(tuple(round(share, 5) for share in of(x).tolist()) for x in images)

    charts = [
        Chart(
            title="Intensity",
            lead="How bright the pixels are: the share of each group's pixels in every range.",
            axis="pixel intensity, dark to bright",
            edges=tuple(np.linspace(0, 1, 33).tolist()),
            **shares(measures.intensity_histogram),
        ),
        Chart(
            title="Direction of strokes",
            lead="The share of edges that run in each direction.",
            axis="degrees; 0 is level, 90 upright",
            edges=tuple(np.linspace(0, 180, 19).tolist()),
            **shares(measures.orientation_spectrum),
        ),
    ]
    if primary is not None:
        charts.append(
            Chart(
                title="Classes",
                lead="What the primary model takes the samples for.",
                axis="class",
                categories=tuple(map(str, range(primary.classes))),
                **shares(lambda x: measures.class_shares(primary.predictions(x).clamp(min=0), primary.classes)),
            )
        )
    return tuple(charts)


# What to mind


def _failure(group: Samples) -> str | None:
    """Why nothing can be concluded from these samples, if so."""
    if not group.images.isfinite().all():
        return f"{group.label}: the model diverged; nothing can be concluded"
    x = group.images[:COMPARED].double()
    x = x - x.mean((1, 2, 3), keepdim=True)
    power = float(x.square().mean())
    if power < 1e-6:
        return f"{group.label}: the samples are blank; nothing can be concluded"
    along, down = (x[..., 1:] * x[..., :-1]).mean(), (x[..., 1:, :] * x[..., :-1, :]).mean()
    if float(along + down) / 2 < SMOOTH * power:
        return (
            f"{group.label}: the model drew noise: it has not learnt from so few users at so small an epsilon, and "
            "nothing can be concluded"
        )
    return None


def _collapsed(groups: Sequence[Samples], numbers: Sequence[TableRow]) -> tuple[str, ...]:
    counted = next(row for row in numbers if row["name"] == VARIETY)
    return tuple(
        f"{group.label}: the samples hardly differ from each other ({counted[key]:.1f} different pictures in effect); "
        "the model has collapsed and would miss what is rare"
        for key, group in by_place(groups).items()
        if counted[key] < COLLAPSED
    )
