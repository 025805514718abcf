"""Two sets of DP samples in, one report out: do they differ, how, and which known bug explains it?

Everything here reads samples only, so it costs no privacy.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
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
from fedlens.report.comparison import Null, by_place
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
_number = functools.partial(comparison.number, digits=DIGITS)


def contrast(
    left: Samples,
    right: Samples | None = None,
    *,
    primary: Primary | None = None,
    kinds: Sequence[str] = (),
    glimpses: Sequence[Samples] = (),
    coverage: bool = True,
    warnings: tuple[str, ...] = (),
    null: Null | None = None,
    **about: Any,
) -> Report:
    """`left` is the suspicious group, `right` the healthy one; with one group alone, a sanity check (T1).

    `kinds` are further hypotheses (package.module:function), `glimpses` what the models drew in earlier rounds. The
    `coverage` takes seconds. A `null` says how far apart two models are that differ by no cause. What else is known
    `about` the report, `comparison.compared` says.
    """
    groups: tuple[Samples, ...] = (left,) if right is None else (left, right)
    if len({group.images.shape[1:] for group in groups}) > 1:
        raise ValueError("Expected samples of one size to compare.")
    # A model that diverged has spent its budget all the same: what it drew is shown as mid grey, and said.
    failures = comparison.failures_of(groups, _failure)
    diverged, groups = any(map(_diverged, groups)), tuple(map(_finite, groups))
    side, channels = groups[0].images.shape[-1], groups[0].images.shape[1]
    asked = primary if primary and (primary.side, primary.channels) == (side, channels) else None
    images, tried = [group.images[:COMPARED] for group in groups], (*FAULTS.known, *kinds)
    tests = _tests(*images) if len(groups) > 1 else {}
    alike = not any(test.p_value <= SIGNIFICANT for test in tests.values())  # chance alone would part the images as far
    ranked = _hypotheses(groups, asked, tried) if len(groups) > 1 and not diverged else ()
    rows = ranking.named_where(ranked, lambda row: not failures and (row["kind"] in OF_LABELS or not alike))
    leaves = _leaves(rows, images, null)
    if leaves is not None:
        rows = ranking.named_where(rows, lambda _: False)
    if not any(row["named"] for row in rows) and not alike and not failures:
        rows = _with_undone(rows, images, tried)
    numbers = [*_numbers(groups, asked), *_test_rows(tests)]
    return comparison.compared(
        groups,
        guarantee=guarantee([group.spending for group in groups], max(group.delta for group in groups)),
        findings=_findings(groups, rows, numbers),
        hypotheses=rows,
        missed=lambda: hypotheses.missed(images[0], images[1], tried) if coverage else (),
        failures=failures,
        exhibits=exhibits.exhibited(
            exhibits.drawn_by([*map(_finite, glimpses), *groups], asked),
            exhibits.averages([(group.spending.account.run, group.label, group.images) for group in groups]),
        ),
        numbers=numbers,
        charts=_charts(images, asked),
        warnings=(*warnings, *failures, *_collapsed(groups, numbers)),
        null=null,
        alike=alike,
        leaves=leaves,
        **about,
    )


def _finite(group: Samples) -> Samples:
    return dataclasses.replace(group, images=group.images.nan_to_num(0, 1, -1))


# What explains it


def _hypotheses(groups: Sequence[Samples], primary: Primary | None, kinds: Sequence[str]) -> tuple[TableRow, ...]:
    left, right = (group.images[:COMPARED] for group in groups)
    rows = hypotheses.ranked(left, right, kinds)
    drawn = [group.classes for group in groups if group.classes is not None]
    if primary is None or len(drawn) < 2:
        return rows
    left_seen, right_seen = (
        (classes, primary.predictions(group.images)) for classes, group in zip(drawn, groups, strict=True)
    )
    nothing = next(row["distance"] for row in rows if row["kind"] == ranking.NONE)
    return ranking.in_order([*rows, *hypotheses.swapped(left_seen, right_seen, nothing)], hypotheses.enough)


def _leaves(rows: Sequence[TableRow], images: Sequence[torch.Tensor], null: Null | None) -> float | None:
    """Which share of the difference the fault that would be named leaves, if that is too much."""
    best = next((row for row in rows if row["named"] and row["kind"] not in OF_LABELS), None)
    if best is None:
        return None
    nothing = next(row["distance"] for row in rows if row["kind"] == ranking.NONE)
    rest, most = hypotheses.left_over(best["kind"], images[0], images[1])
    return None if comparison.small(rest, best["score"], null, most) else min(1.0, rest / nothing)


def _with_undone(
    rows: tuple[TableRow, ...], images: Sequence[torch.Tensor], kinds: Sequence[str]
) -> tuple[TableRow, ...]:
    """The same rows; where one stands out that both groups hold, the one more than the other, it is named."""
    shared = hypotheses.undone(images[0], images[1], kinds)
    if shared is None:
        return rows
    return (shared | {"named": True}, *(row for row in rows if row["kind"] != shared["kind"]))


def _findings(groups: Sequence[Samples], rows: Sequence[TableRow], numbers: Sequence[TableRow]) -> tuple[Finding, ...]:
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
    if "undone" not in best:
        return (comparison.finding(best, seen, second),)
    left, right = (group.label for group in groups)
    both = f": {right} is like {left} with it undone in {best['undone']:.0%} of the samples, so both groups hold it"
    return (comparison.finding(best, seen, affected=both),)


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
    classes = [group.classes[:COMPARED] for group in groups if group.classes is not None]
    if primary is not None and len(classes) == len(groups):
        note = "how often it sees the class the sample was drawn as"
        right = (primary.predictions(x) == drawn for x, drawn in zip(images, classes, strict=True))
        rows.append(_number("primary model's accuracy", note, (each.float().mean() for each in right)))
    return rows


def _tests(left: torch.Tensor, right: torch.Tensor) -> dict[str, TwoSample]:
    """Whether the two sets of samples differ at all. Two models of the same data usually do: this names nothing."""
    tests = (
        measures.classifier_test(left, right),
        measures.mmd_test(left, right),
        measures.mmd_test(left, right, features=measures.random_features),
    )
    return dict(zip(TESTS, tests, strict=True))


def _test_rows(tests: Mapping[str, TwoSample]) -> list[TableRow]:
    notes = {name: f"{TESTS[name]}; permutation p-value {test.p_value:.3f}" for name, test in tests.items()}
    return [_number(name, notes[name], [test.statistic]) for name, test in tests.items()]


def _charts(images: Sequence[torch.Tensor], primary: Primary | None) -> tuple[Chart, ...]:
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
                **shares(lambda x: primary.predictions(x).clamp(min=0).bincount(minlength=primary.classes) / len(x)),
            )
        )
    return tuple(charts)


# What to mind


def _diverged(group: Samples) -> bool:
    return not bool(group.images.isfinite().all())


def _failure(group: Samples) -> str | None:
    """Why nothing can be concluded from these samples, if so."""
    if _diverged(group):
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
