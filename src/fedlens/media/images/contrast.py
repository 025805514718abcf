"""Two sets of DP samples in, one report out: do they differ, how, and which known bug explains it?

Everything here reads samples only, so it costs no privacy.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fedlens.ledger import guarantee
from fedlens.media.images import hypotheses, measures
from fedlens.media.images.faults import TRANSFORMS
from fedlens.media.images.samples import Samples
from fedlens.models.classifier import Primary
from fedlens.report.report import Chart, Finding, Picture, Report, averages

COMPARED = 512  # samples a side
SHOWN = 64
SIGNIFICANT = 0.05
SMOOTH = 0.1  # neighbouring pixels of any picture agree more than this; those of noise do not
COLLAPSED = 4.0  # different pictures in effect
VARIETY = "different pictures"
OF_LABELS = {kind for kind, transform in TRANSFORMS.items() if transform.labels}  # these leave the images alone
Row = dict[str, Any]


def contrast(
    left: Samples,
    right: Samples | None = None,
    *,
    title: str = "fedlens report",
    primary: Primary | None = None,
    kinds: Sequence[str] = (),
    earlier: Sequence[Samples] = (),
    before: Sequence[Finding] = (),
    coverage: bool = True,
    warnings: tuple[str, ...] = (),
    provenance: dict[str, str] | None = None,
) -> Report:
    """`left` is the suspicious side, `right` the healthy one; with one side alone, a sanity check (T1).

    `kinds` are further hypotheses (package.module:function), `earlier` what the models drew in earlier rounds, `before`
    the findings of an earlier report: those that are gone are reported as resolved. `coverage` takes seconds.
    """
    sides: tuple[Samples, ...] = (left,) if right is None else (left, right)
    if len({side.images.shape[1:] for side in sides}) > 1:
        raise ValueError("Expected samples of one size to compare.")
    # A model that diverged has spent its budget all the same: what it drew is shown as mid grey, and said.
    failures = tuple(told for side in sides if (told := _failure(side)))
    sides = tuple(_finite(side) for side in sides)
    asked = primary if primary and (primary.side, primary.channels) == _size(sides[0]) else None
    tests = _tests(sides)
    alike = not any(row["p-value"] <= SIGNIFICANT for row in tests)  # chance alone would part the images as far
    rows = tuple(
        row | {"named": row["named"] and not (failures or (alike and row["kind"] not in OF_LABELS))}
        for row in _hypotheses(sides, asked, kinds)
    )
    numbers = (*_numbers(sides, asked), *tests)
    found = _findings(rows, numbers)
    return Report(
        title=title,
        findings=found,
        resolved=() if failures or not rows else tuple(f for f in before if f.kind not in {g.kind for g in found}),
        guarantee=guarantee([side.spending for side in sides], max(side.delta for side in sides)),
        runs=tuple(_run(side) for side in sides),
        pictures=_pictures([*map(_finite, earlier), *sides], asked),
        means=averages([(side.spending.account.run, side.label, side.images) for side in sides]),
        numbers=tuple({"right": None} | {k: v for k, v in row.items() if k != "p-value"} for row in numbers),
        charts=_charts(sides, asked),
        hypotheses=rows,
        coverage=_coverage(sides, kinds) if coverage and rows and not (found or failures) else (),
        warnings=(
            *warnings,
            *failures,
            *_collapsed(sides, numbers),
            *(
                f"the hypothesis {row['kind']} failed on the samples and was left out"
                for row in rows
                if not math.isfinite(row["distance"])
            ),
        ),
        provenance=provenance or {},
    )


def _finite(side: Samples) -> Samples:
    return dataclasses.replace(side, images=side.images.nan_to_num(0, 1, -1))


def _size(side: Samples) -> tuple[int, int]:
    return side.images.shape[-1], side.images.shape[1]


# What explains it


def _hypotheses(sides: Sequence[Samples], primary: Primary | None, kinds: Sequence[str]) -> tuple[Row, ...]:
    if len(sides) < 2:
        return ()
    left, right = (side.images[:COMPARED] for side in sides)
    rows = hypotheses.ranked(left, right, (*TRANSFORMS, *kinds))
    drawn = [side.classes for side in sides if side.classes is not None]
    if primary is None or len(drawn) < 2:
        return rows
    left_seen, right_seen = (
        (classes, primary.predictions(side.images)) for classes, side in zip(drawn, sides, strict=True)
    )
    nothing = next(row["distance"] for row in rows if row["kind"] == "none")
    return hypotheses.in_order([*rows, *hypotheses.swapped(left_seen, right_seen, nothing)])


def _findings(rows: Sequence[Row], numbers: Sequence[Row]) -> tuple[Finding, ...]:
    best = next((row for row in rows if row["named"]), None)
    if best is None:
        return ()
    by_name = {row["name"]: row for row in numbers}
    intensity, told_apart = by_name["mean intensity"], by_name["two-sample AUC"]["left"]
    mirrored = "histogram mirrored, " if best["kind"] == "inverted" else ""
    seen = (
        f"mean intensity {intensity['left']:.2f} vs {intensity['right']:.2f}, {mirrored}two-sample AUC {told_apart:.2f}"
    )
    if best["kind"] in OF_LABELS:
        seen = "the primary model disagrees with the labels that were drawn"
    second = rows[1] if rows[1]["kind"] != "none" else None
    runner_up = f" (runner-up: {second['summary']}, {max(0, second['score']):.0%})" if second else ""
    summary = f"{seen}: looks like {best['summary']}, which explains {best['score']:.0%} of the difference{runner_up}"
    severity = "high" if best["score"] > 0.7 else "medium"
    return (Finding(kind=best["kind"], summary=summary, score=best["score"], severity=severity),)


def _coverage(sides: Sequence[Samples], kinds: Sequence[str]) -> tuple[Row, ...]:
    left, right = (side.images[:COMPARED] for side in sides)
    return hypotheses.missed(left, right, (*TRANSFORMS, *kinds))


# What differs


def _numbers(sides: Sequence[Samples], primary: Primary | None) -> list[Row]:
    measured = {
        "mean intensity": (lambda x: (x.mean() + 1) / 2, "0 is black, 1 is white"),
        "bright pixels": (lambda x: (x > 0).float().mean(), "share of pixels in the upper half"),
        "spread": (measures.spread, "mean distance between two samples, per pixel"),
        VARIETY: (measures.distinct, f"in effect, of {COMPARED}; near 1 means one again and again"),
    }
    if primary is not None:
        measured["primary model's confidence"] = (lambda x: primary.confidence(x).mean(), "mean top class probability")
    rows: list[Row] = [
        {"name": name, "note": note} | _each(sides, lambda side, of=of: of(side.images[:COMPARED]))
        for name, (of, note) in measured.items()
    ]
    if primary is not None and all(side.classes is not None for side in sides):
        note = "how often it sees the class the sample was drawn as"
        rows.append({"name": "primary model's accuracy", "note": note} | _each(sides, lambda s: _accuracy(s, primary)))
    return rows


def _each(sides: Sequence[Samples], of: Any) -> Row:
    return {key: round(float(of(side)), 4) for key, side in zip(("left", "right"), sides, strict=False)}


def _accuracy(side: Samples, primary: Primary) -> torch.Tensor:
    return (primary.predictions(side.images[:COMPARED]) == side.classes[:COMPARED]).float().mean()  # type: ignore[index]


def _tests(sides: Sequence[Samples]) -> list[Row]:
    """Whether the two sets of samples differ at all. Two models of the same data usually do: this names nothing."""
    if len(sides) < 2:
        return []
    left, right = (side.images[:COMPARED] for side in sides)
    auc = measures.classifier_test(left, right)
    near, textures = measures.mmd_test(left, right), measures.mmd_test(left, right, features=measures.random_features)
    about = {
        "two-sample AUC": (auc, "a linear classifier between the sides: 0.5 tells nothing apart, 1 everything"),
        "kernel distance, pixels": (near, "maximum mean discrepancy"),
        "kernel distance, features": (textures, "the same of random convolutions"),
    }
    return [
        {
            "name": name,
            "left": round(test.statistic, 4),
            "note": f"{note}; permutation p-value {test.p_value:.3f}",
            "p-value": test.p_value,
        }
        for name, (test, note) in about.items()
    ]


def _charts(sides: Sequence[Samples], primary: Primary | None) -> tuple[Chart, ...]:
    images = [side.images[:COMPARED] for side in sides]

    def shares(of: Any) -> dict[str, Any]:
        found = [tuple(round(share, 5) for share in of(x).tolist()) for x in images]
        return dict(zip(("left", "right"), found, strict=False))

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


def _failure(side: Samples) -> str | None:
    """Why nothing can be concluded from these samples, if so."""
    if not side.images.isfinite().all():
        return f"{side.label}: the model diverged; nothing can be concluded"
    x = side.images[:COMPARED].double()
    x = x - x.mean((1, 2, 3), keepdim=True)
    power = float(x.square().mean())
    if power < 1e-6:
        return f"{side.label}: the samples are blank; nothing can be concluded"
    along, down = (x[..., 1:] * x[..., :-1]).mean(), (x[..., 1:, :] * x[..., :-1, :]).mean()
    if float(along + down) / 2 < SMOOTH * power:
        return (
            f"{side.label}: the model drew noise: it has not learnt from so few users at so small an epsilon, and "
            "nothing can be concluded"
        )
    return None


def _collapsed(sides: Sequence[Samples], numbers: Sequence[Row]) -> tuple[str, ...]:
    counted = next(row for row in numbers if row["name"] == VARIETY)
    return tuple(
        f"{side.label}: the samples hardly differ from each other ({counted[key]:.1f} different pictures in effect); "
        "the model has collapsed and would miss what is rare"
        for key, side in zip(("left", "right"), sides, strict=False)
        if counted[key] < COLLAPSED
    )


def _run(side: Samples) -> dict[str, object]:
    releases = sum(plan.releases for plan in side.spending.plans)
    return {
        "run": side.spending.account.run,
        "label": side.label,
        "releases": releases,
        "guarantee": side.guarantee.headline,
    }


def _pictures(drawn: Sequence[Samples], primary: Primary | None) -> tuple[Picture, ...]:
    made: dict[str, Picture] = {}
    for side in drawn:
        shown, run = side.images[:SHOWN], side.spending.account.run
        classes = side.classes[:SHOWN] if side.classes is not None else primary.predictions(shown) if primary else ()
        file = "samples/" + run.replace("/", "-") + ("" if side.round is None else f"-round-{side.round}")
        while file in made:  # a model compared with itself
            file += "-again"
        made[file] = Picture.of(
            shown,
            run=run,
            label=side.label,
            file=f"{file}.png",
            round=side.round,
            classes=[int(seen) for seen in classes],
        )
    return tuple(made.values())
