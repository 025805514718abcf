"""Which known bug explains the difference between two sets of samples, and which would be missed?

A hypothesis is a fault. Applied to the healthy group's samples, the true one brings them closest to the
suspicious group's. Two models of the same data differ too, by noise and by seed, but no fault explains that away:
what is named must explain a share of the difference that pairs without a bug do not reach.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from fedlens.media.faults import Fault
from fedlens.media.images import measures
from fedlens.media.images.faults import FAULTS
from fedlens.report import ranking
from fedlens.report.values import TableRow

# A fault is named when it explains away at least this share of the distance. Chosen on models of public images
# (digits of the test writers, Fashion-MNIST's test images): see docs/results/images.md.
NAMED = 0.25
SPECKLE = 0.5  # for additive noise: private models differ by how much of it they draw, without any bug
# The healthy group as a mixture of the suspicious one and of what undoes a fault there: chosen on models of digits and
# clothes, reduced to 8 x 8 (docs/results/images.md).
UNDONE = 0.8  # share of the difference that it must explain
APART = 2.0  # and so many times as much as any other fault that is undone: what merely blurs serves as well
# What a fault may leave of a distance, in distances between two samples of one group: chosen on the same.
LEFT = 0.5
SHARES = tuple(share / 20 for share in range(1, 21))
COARSE = 7  # places a side


def pixels(images: torch.Tensor) -> torch.Tensor:
    return images.flatten(1)


def coarse(images: torch.Tensor) -> torch.Tensor:
    """Light and dark by region: what survives in a noisy model's samples."""
    return F.adaptive_avg_pool2d(images, min(COARSE, images.shape[-1] // 2)).flatten(1)


VIEWS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (pixels, coarse, measures.random_features)


def ranked(left: torch.Tensor, right: torch.Tensor, kinds: Sequence[str] = tuple(FAULTS.known)) -> tuple[TableRow, ...]:
    """All hypotheses, the closest first; "none of these" competes like any other.

    A distance is the geometric mean of energy distances in three views; a score the share of it that is explained.
    """
    seen = _seen(left)
    nothing = _distance(seen, _seen(right))
    rows = [ranking.none_of_these(nothing)]
    for kind, fault in _of_images(kinds):
        changed = _changed(fault, right)
        distance = math.inf if changed is None else _distance(seen, _seen(changed))
        rows.append(ranking.hypothesis(kind, fault.summary, distance, nothing, needed=least(kind)))
    return ranking.in_order(rows, enough)


def _of_images(kinds: Sequence[str]) -> list[tuple[str, Fault]]:
    faults = ((kind, FAULTS.named(kind)) for kind in dict.fromkeys(kinds))
    return [(kind, fault) for kind, fault in faults if fault.change is not None]


def _changed(fault: Fault, images: torch.Tensor) -> torch.Tensor | None:
    """What the fault makes of a copy; None if it fails, or gives back what are no images of this size."""
    changed = ranking.attempted(fault.change, images.clone()) if fault.change else None
    if not isinstance(changed, torch.Tensor) or changed.shape != images.shape or not changed.is_floating_point():
        return None
    return changed.detach().clamp(-1, 1) if changed.isfinite().all() else None


def enough(row: TableRow) -> bool:
    score: float = row["score"]
    return score >= least(row["kind"])


def least(kind: str) -> float:
    """The share of the difference that this bug must explain to be named."""
    return SPECKLE if kind == "noisy" else NAMED


def left_over(kind: str, left: torch.Tensor, right: torch.Tensor) -> tuple[float, float]:
    """How far the suspicious group stays from the best mixture of the healthy one with what a fault makes of it.

    And how far that may be, for want of a null.
    """
    changed = _changed(FAULTS.named(kind), right)
    seen = _seen(left), _seen(right)
    varies = [math.log(max(math.sqrt(a.within * b.within), 1e-9)) for a, b in zip(*seen, strict=True)]
    rest = math.inf if changed is None else _explained(seen[0], seen[1], _seen(changed))[1]
    return rest, LEFT * math.exp(sum(varies) / len(varies))


def undone(left: torch.Tensor, right: torch.Tensor, kinds: Sequence[str] = tuple(FAULTS.known)) -> TableRow | None:
    """The fault that explains the healthy group as a mixture of the suspicious one, and of that with the fault undone.

    So it is where both groups hold faulty samples, the one more than the other; then no change of all samples leads
    from one to the other. None if no fault stands out.
    """
    one, other, tried = _seen(left), _seen(right), []
    for kind, fault in _of_images(kinds):
        changed = _changed(Fault(summary=fault.summary, change=fault.undo), left)
        if changed is not None:
            share, rest = _explained(other, one, _seen(changed))
            tried.append((rest, share, kind, fault.summary))
    if not tried:
        return None
    nothing = _distance(other, one)
    (rest, share, kind, summary), *others = sorted(tried)
    row = ranking.hypothesis(kind, summary, rest, nothing, needed=UNDONE, undone=share)
    second = 1 - others[0][0] / nothing if others else 0.0
    return row if row["score"] >= max(UNDONE, APART * second) else None


def swapped(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor], nothing: float) -> list[TableRow]:
    """Hypotheses about labels, from (classes to draw, classes the primary model sees) of conditional samples.

    A bug in the labels leaves the images alone. It shows where the primary model agrees with the changed labels on the
    suspicious group, while it agrees with the plain ones on the healthy group.
    """
    rows = []
    for kind, fault in FAULTS.known.items():
        if fault.labels is None:
            continue
        classes = 1 + int(max(left[0].max(), right[0].max()))
        plain, changed = (_agreed(labels, left[1]) for labels in (left[0], fault.labels(left[0], classes)))
        trusted = _agreed(*right) > 2 / classes  # else the model never learnt what a label means
        score = max(-1.0, 1 - (1 - changed) / max(1 - plain, 1e-6)) if trusted else 0.0
        rows.append(ranking.hypothesis(kind, fault.summary, nothing * (1 - score), nothing, needed=least(kind)))
    return rows


def _agreed(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one == other).float().mean())


def missed(left: torch.Tensor, right: torch.Tensor, kinds: Sequence[str] = tuple(FAULTS.known)) -> tuple[TableRow, ...]:
    """For each bug, the smallest share of the left group's samples, in percent, that must carry it to be explained.

    Planted on the samples themselves, so that it costs nothing; None where no share suffices. Another bug may explain a
    rare one's trace still better, so this is the least that is needed.
    """
    rows, seen_left, seen_right = [], _seen(left), _seen(right)
    for kind, fault in _of_images(kinds):
        changed = [_changed(fault, images) for images in (left, right)]
        if changed[0] is not None and changed[1] is not None:
            scores = _planted(seen_left, _seen(changed[0]), seen_right, _seen(changed[1]))
            share = next((share for share, score in scores if score >= least(kind)), None)
            rows.append({"kind": kind, "summary": fault.summary, "percent": share and round(100 * share)})
    return tuple(rows)


def _planted(*groups: Sequence["_Rows"]) -> list[tuple[float, float]]:
    """(share, score) with the change on that share of the left group: of left, left changed, right, right changed.

    Energy distances of mixtures are quadratic in the share.
    """
    views = list(zip(*groups, strict=True))
    apart = [_means(*rows) for rows in views]
    scores = []
    for share in SHARES:
        logs = [_mixed(share, rows, mean) for rows, mean in zip(views, apart, strict=True)]
        scores.append((share, 1 - math.exp(sum(logs) / len(logs))))
    return scores


def _mixed(share: float, groups: tuple["_Rows", ...], mean: dict[tuple[int, int], float]) -> float:
    """The logarithm of how far the mixture is from the changed right group, over how far from the plain one."""
    plain, changed, right, changed_right = groups
    far = [
        _from_mixture(share, (plain, changed), rows, (mean[0, 1], mean[0, group], mean[1, group])) + plain.floor
        for group, rows in ((2, right), (3, changed_right))
    ]
    return math.log(far[1] / far[0])


def _explained(target: Sequence["_Rows"], plain: Sequence["_Rows"], changed: Sequence["_Rows"]) -> tuple[float, float]:
    """The share of changed samples that brings a mixture with plain ones closest to the target, and how close."""
    views = list(zip(target, plain, changed, strict=True))
    means = [(_mean(one, other), _mean(one, goal), _mean(other, goal)) for goal, one, other in views]

    def distance(share: float) -> float:
        energies = (
            _from_mixture(share, (one, other), goal, mean) + goal.floor
            for (goal, one, other), mean in zip(views, means, strict=True)
        )
        return math.exp(sum(map(math.log, energies)) / len(views))

    return min(((share, distance(share)) for share in (0.0, *SHARES)), key=lambda pair: pair[1])


def _from_mixture(
    share: float, parts: tuple["_Rows", "_Rows"], target: "_Rows", means: tuple[float, float, float]
) -> float:
    """The energy distance of a target from a mixture of two parts, with that share of the second.

    The means are those of the distances between the parts, and between either and the target.
    """
    (plain, changed), rest = parts, 1 - share
    within = rest**2 * plain.within + 2 * share * rest * means[0] + share**2 * changed.within
    return max(0.0, 2 * (rest * means[1] + share * means[2]) - within - target.within)


# Energy distances


@dataclasses.dataclass(frozen=True, eq=False)
class _Rows:
    """Samples in one view, with the mean distance of two of them."""

    rows: torch.Tensor
    within: float

    @property
    def floor(self) -> float:
        """About what chance alone makes of an energy distance of so many samples: less than that explains nothing."""
        return 2 * self.within / len(self.rows) + 1e-9


def _seen(images: torch.Tensor) -> list[_Rows]:
    views = [view(images).float() for view in VIEWS]
    return [_Rows(rows, _within(rows)) for rows in views]


def _within(rows: torch.Tensor) -> float:
    return float(torch.cdist(rows, rows).sum() / max(1, len(rows) * (len(rows) - 1)))


def _means(*groups: _Rows) -> dict[tuple[int, int], float]:
    pairs = (0, 1), (0, 2), (0, 3), (1, 2), (1, 3)
    return {(i, j): _mean(groups[i], groups[j]) for i, j in pairs}


def _mean(one: _Rows, other: _Rows) -> float:
    return float(torch.cdist(one.rows, other.rows).mean())


def energy_distance(left: _Rows, right: _Rows) -> float:
    """Szekely's energy distance, with what chance alone would make of it added."""
    apart = 2 * _mean(left, right) - left.within - right.within
    return max(0.0, apart) + left.floor


def _distance(left: Sequence[_Rows], right: Sequence[_Rows]) -> float:
    logs = [math.log(energy_distance(a, b)) for a, b in zip(left, right, strict=True)]
    return math.exp(sum(logs) / len(logs))
