"""Two sets of DP samples in, one report out: do they differ, how, and which known bug explains it?

Everything here reads samples only, so it costs no privacy.
"""

import dataclasses
from typing import Any

import numpy as np
import torch

from fedlens.inspection import pictures
from fedlens.inspection.report import Finding, Picture, Report
from fedlens.inspection.samples import Samples
from fedlens.ledger import guarantee
from fedlens.models.classifier import Primary
from fedlens.transforms import TRANSFORMS

COMPARED = 512  # samples a side
SHOWN = 64
# A transform is named when it explains away at least this share of the distance between the two sides. Two models of
# the same data differ by their noise, which no transform explains.
EXPLAINED = 0.4


def contrast(
    left: Samples,
    right: Samples | None = None,
    *,
    title: str = "fedlens report",
    primary: Primary | None = None,
    warnings: tuple[str, ...] = (),
    provenance: dict[str, str] | None = None,
) -> Report:
    """`left` is the suspicious side, `right` the healthy one; with one side alone, a sanity check (T1)."""
    sides: tuple[Samples, ...] = (left,) if right is None else (left, right)
    if len({side.images.shape[1:] for side in sides}) > 1:
        raise ValueError("Expected samples of one size to compare.")
    broken = tuple(side for side in sides if not side.images.isfinite().all())
    # A model that diverged has spent its budget all the same: what it drew is shown as mid grey, and said.
    sides = tuple(dataclasses.replace(side, images=side.images.nan_to_num(0, 1, -1)) for side in sides)
    hypotheses = ranked(sides[0].images, sides[1].images) if right else ()
    numbers = _numbers(sides, primary)
    return Report(
        title=title,
        findings=() if broken else _findings(hypotheses, numbers),
        guarantee=guarantee([side.spending for side in sides], max(side.delta for side in sides)),
        runs=tuple(_run(side) for side in sides),
        pictures=tuple(_picture(side) for side in sides),
        numbers=numbers,
        histogram=_histogram(sides),
        hypotheses=hypotheses,
        warnings=(
            *warnings,
            *(f"{side.label}: the model diverged; nothing can be concluded" for side in broken),
            *_warnings(sides),
        ),
        provenance=provenance or {},
    )


def ranked(left: torch.Tensor, right: torch.Tensor) -> tuple[dict[str, Any], ...]:
    """Which transform of the healthy side comes closest to the suspicious one? "none" competes like any other."""
    left, right = left[:COMPARED], right[:COMPARED]
    rows: list[dict[str, Any]] = [
        {"kind": "none", "summary": "none of these", "distance": energy_distance(left, right)}
    ]
    for kind, (summary, transform) in TRANSFORMS.items():
        rows.append({"kind": kind, "summary": summary, "distance": energy_distance(left, transform(right))})
    return tuple(sorted(rows, key=lambda row: row["distance"]))


def energy_distance(left: torch.Tensor, right: torch.Tensor) -> float:
    """Szekely's energy distance per pixel: 0 for equal distributions, no bandwidth to choose.

    >>> same = torch.zeros(4, 1, 2, 2)
    >>> energy_distance(same, same), energy_distance(same, same + 1)
    (0.0, 2.0)
    """
    a, b = left.flatten(1).double(), right.flatten(1).double()
    between = 2 * torch.cdist(a, b).mean() - _within(a) - _within(b)
    return max(0.0, float(between)) / a.shape[1] ** 0.5


def _within(rows: torch.Tensor) -> torch.Tensor:
    return torch.cdist(rows, rows).sum() / max(1, len(rows) * (len(rows) - 1))


def _findings(hypotheses: tuple[dict, ...], numbers: tuple[dict, ...]) -> tuple[Finding, ...]:
    if not hypotheses or hypotheses[0]["kind"] == "none":
        return ()
    best, none = hypotheses[0], next(row for row in hypotheses if row["kind"] == "none")
    score = 1 - best["distance"] / none["distance"]
    if score < EXPLAINED:
        return ()
    by_name = {row["name"]: row for row in numbers}
    intensity, told_apart = by_name["mean intensity"], by_name["two-sample AUC"]["left"]
    mirrored = "histogram mirrored, " if best["kind"] == "inverted" else ""
    summary = (
        f"mean intensity {intensity['left']:.2f} vs {intensity['right']:.2f}, {mirrored}"
        f"two-sample AUC {told_apart:.2f}: looks like {best['summary']}, which explains {score:.0%} of the difference"
    )
    return (
        Finding(
            kind=best["kind"], summary=summary, score=round(score, 4), severity="high" if score > 0.7 else "medium"
        ),
    )


def _numbers(sides: tuple[Samples, ...], primary: Primary | None) -> tuple[dict, ...]:
    measures = {
        "mean intensity": (lambda x: (x.mean() + 1) / 2, "0 is black, 1 is white"),
        "bright pixels": (lambda x: (x > 0).float().mean(), "share of pixels in the upper half"),
        "spread": (_spread, "mean distance between two samples, per pixel; near 0 means one picture again and again"),
    }
    if primary is not None and primary.network.side == sides[0].images.shape[-1]:
        measures["primary model's confidence"] = (lambda x: primary.confidence(x).mean(), "mean top class probability")
    rows = [
        {"name": name, "note": note}
        | {
            key: round(float(of(side.images[:COMPARED])), 4)
            for key, side in zip(("left", "right"), sides, strict=False)
        }
        for name, (of, note) in measures.items()
    ]
    if len(sides) == 2:
        note = "how well a linear classifier tells the sides apart: 0.5 not at all, 1 always"
        rows.append(
            {"name": "two-sample AUC", "left": round(two_sample_auc(sides[0].images, sides[1].images), 4), "note": note}
        )
    return tuple({"right": None} | row for row in rows)


def _spread(images: torch.Tensor) -> torch.Tensor:
    flat = images.flatten(1).double()
    return _within(flat) / flat.shape[1] ** 0.5


def two_sample_auc(left: torch.Tensor, right: torch.Tensor) -> float:
    """The cross-validated AUC of a linear classifier between the two sides."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import cross_val_predict

    x = torch.cat([left[:COMPARED], right[:COMPARED]]).flatten(1).numpy()
    y = np.repeat([0, 1], [min(COMPARED, len(left)), min(COMPARED, len(right))])
    scores = cross_val_predict(LogisticRegression(max_iter=200, C=0.1), x, y, cv=5, method="decision_function")
    return float(roc_auc_score(y, scores))


def _histogram(sides: tuple[Samples, ...]) -> dict[str, object]:
    edges = np.linspace(0, 1, 33)
    shares = []
    for side in sides:
        counts = np.histogram(((side.images + 1) / 2).numpy(), edges)[0]
        shares.append([round(float(share), 5) for share in counts / counts.sum()])
    rows = dict(zip(("left", "right"), shares, strict=False))
    return {"edges": edges.tolist(), "right": None} | rows | {"labels": [side.label for side in sides]}


def _warnings(sides: tuple[Samples, ...]) -> tuple[str, ...]:
    return tuple(
        f"{side.label}: the samples hardly differ from each other; the model may have collapsed and miss rare things"
        for side in sides
        if float(_spread(side.images[:COMPARED])) < 0.05
    )


def _run(side: Samples) -> dict[str, object]:
    releases = sum(plan.releases for plan in side.spending.plans)
    return {
        "run": side.spending.account.run,
        "label": side.label,
        "releases": releases,
        "guarantee": side.guarantee.headline,
    }


def _picture(side: Samples) -> Picture:
    png = pictures.png_bytes(side.images[:SHOWN])
    return Picture(
        run=side.spending.account.run,
        label=side.label,
        file=f"samples/{side.spending.account.run.replace('/', '-')}.png",
        png=png,
    )
