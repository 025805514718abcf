"""Were the units of two looks drawn alike, and if not, in which of their numbers do they differ?

Free post-processing of two releases, of any medium. The noise of both is known exactly. How much units vary by
themselves is a part of every release, block by block (`SPREAD`), and how many there are as well (`COUNT`): nothing
about them is taken for free. What is tested is whether units were drawn alike, not whether samples are equal.

How the variation of units lies in a block's directions is not released. Far out in the tail the worst case is that all
of it lies in one direction (Szekely and Bakirov 2003); every p-value supposes that.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from scipy import stats

from fedlens.core.trees import Tree

COUNT, SPREAD = "count", "spread"  # blocks that every look has for these tests
SURE = 2.0  # standard errors that are allowed for where a variance is itself known with noise
LEVEL = 0.01  # of the test: so many of all pairs without a cause are said to differ
FEW = 5  # units: with fewer, how much they vary is not told by them, and a test finds differences that are none
CLEAR = 3.0  # standard errors: what a picture shows of a difference
FAULTS = "faults"  # a row of the test: the direction of a known fault that shows the difference best
Views = Mapping[str, Sequence[np.ndarray]]


class Comparable(Protocol):
    """What two looks must have in common to be compared."""

    @property
    def weights(self) -> Mapping[str, float]:
        """By their block: the norm that a unit sends at most."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    @property
    def meaning(self) -> object:
        """What the numbers of the compared blocks stand for: two looks are compared where it is the same."""

    @property
    def varying(self) -> Sequence[str]:
        """Blocks whose mean squared norm stands in SPREAD, in this order."""

    @property
    def views(self) -> Views:
        """The blocks that are compared: orthonormal rows that look at each more coarsely than it is."""


class Released(Protocol):
    """A noisy mean of what units sent."""

    @property
    def psi(self) -> Comparable: ...

    @property
    def blocks(self) -> Tree: ...

    @property
    def noise(self) -> float: ...

    @property
    def units(self) -> float: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """The mean of one block over the units that are there; no unit's is longer than 1."""

    mean: np.ndarray
    noise: float  # the standard deviation of the noise on each number
    spread: float  # a bound on the variance of the mean by who the units are, over all directions together


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """What is known of the units of a group."""

    blocks: Mapping[str, Block]
    count: float  # how many there are
    count_error: float  # the relative standard error of that

    @classmethod
    def of(cls, release: Released) -> "Group":
        psi = release.psi
        sent = {
            name: release.blocks[name].double().flatten().cpu().numpy() / weight for name, weight in psi.weights.items()
        }
        noises = {name: release.noise / weight for name, weight in psi.weights.items()}
        # Where noise could explain all units, a count says nothing, and nothing is concluded from it.
        share = max(float(sent[COUNT][0]), 2 * noises[COUNT], 1e-9)
        count = max(1.0, share * release.units)
        means = {name: numbers / share for name, numbers in sent.items()}
        errors = {name: noise / share for name, noise in noises.items()}
        squares = _squares(psi.varying, means, errors)
        blocks = {
            name: Block(
                mean=means[name],
                noise=errors[name],
                spread=_varies(means[name], errors[name], squares.get(name, 1.0)) / count,
            )
            for name in psi.views
        }
        return cls(blocks=blocks, count=count, count_error=noises[COUNT] / share)

    @classmethod
    def seen(cls, units: Mapping[str, np.ndarray]) -> "Group":
        """Of units that everybody may see: [units, numbers] by the block."""
        blocks = {
            name: Block(mean=rows.mean(0), noise=0.0, spread=_varied(rows) / len(rows)) for name, rows in units.items()
        }
        return cls(blocks=blocks, count=float(len(next(iter(units.values())))), count_error=0.0)


def _varied(rows: np.ndarray) -> float:
    """How far a unit is from the mean, squared: as it was seen, or at most where a few units do not tell."""
    return float(rows.var(0, ddof=1).sum()) if len(rows) >= FEW else 1.0


def _squares(varying: Sequence[str], means: Mapping[str, np.ndarray], errors: Mapping[str, float]) -> dict[str, float]:
    """By the block: the mean squared norm of what units sent, at most."""
    if not varying:
        return {}
    root = math.sqrt(len(varying))  # SPREAD has norm 1 at most
    error = SURE * errors[SPREAD] * root
    return {name: min(1.0, float(v) * root + error) for name, v in zip(varying, means[SPREAD], strict=True)}


def _varies(mean: np.ndarray, noise: float, square: float) -> float:
    """How far a unit is from the mean, squared, at most: the mean square without the square of the mean."""
    size = mean.size
    length = max(0.0, float(mean @ mean) - size * noise**2)
    error = SURE * noise * math.sqrt(4 * length + 2 * size * noise**2)
    return min(1.0, max(0.0, square - max(0.0, length - error)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """One block: how the first group's mean differs from the second's, and whether chance alone would do that."""

    name: str
    numbers: np.ndarray = dataclasses.field(repr=False)
    error: float  # the standard error of each number, at most
    p: float  # of this block alone
    adjusted: float = 1.0  # for the number of blocks (Holm 1979)

    @property
    def size(self) -> float:
        """The norm of the difference, without what noise adds to it."""
        return math.sqrt(max(0.0, float(self.numbers @ self.numbers) - self.numbers.size * self.error**2))

    @property
    def clear(self) -> np.ndarray:
        """The numbers, with nothing where chance may have made them."""
        return np.where(np.abs(self.numbers) > CLEAR * self.error, self.numbers, 0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tested:
    """Two groups, block by block, the clearest difference first."""

    groups: tuple[Group, Group]
    views: Views
    differences: tuple[Difference, ...]
    along_faults: float = 1.0  # the p-value in the directions of known faults, for the number of rows (Holm)
    rows: int = 1  # how many p-values there are

    @property
    def p(self) -> float:
        """Of all rows together."""
        return min([self.along_faults, *(difference.adjusted for difference in self.differences)])

    @property
    def differ(self) -> bool:
        return self.p <= LEVEL

    def named(self, name: str) -> Difference:
        return next(difference for difference in self.differences if difference.name == name)

    @functools.cached_property
    def blocks(self) -> tuple[str, ...]:
        return tuple(self.views)

    def noise(self, name: str) -> float:
        """On each number of a difference."""
        return math.hypot(*(group.blocks[name].noise for group in self.groups))

    def spread(self, name: str) -> float:
        """The variance of a difference by who the units are, over all directions together, at most."""
        return sum(group.blocks[name].spread for group in self.groups)


Directions = Mapping[str, np.ndarray]  # by the block: [faults, numbers], how much each fault moves the mean


def compared(left: Released, right: Released, directions: Directions | None = None) -> Tested:
    """Two looks that asked the same."""
    check_alike(left.psi, right.psi)
    return two_groups((Group.of(left), Group.of(right)), left.psi.views, directions)


def check_alike(one: Comparable, other: Comparable) -> None:
    """Refuses two looks whose numbers do not mean the same."""
    if one.meaning != other.meaning:
        raise ValueError(
            "Expected two looks that asked the same; theirs count other things, or in other units. Take both with one"
            " recipe, or with the same settings of [look]."
        )


def two_groups(groups: tuple[Group, Group], views: Views, directions: Directions | None = None) -> Tested:
    """Block by block and, where directions are given, along those of known faults."""
    rows = [_difference(name, groups, views[name]) for name in views]
    faults = _along(groups, directions) if directions else None
    ps = [row.p for row in rows] + ([faults] if faults is not None else [])
    adjusted = _holm(ps)
    differences = (dataclasses.replace(row, adjusted=p) for row, p in zip(rows, adjusted, strict=False))
    return Tested(
        groups=groups,
        views=views,
        differences=tuple(sorted(differences, key=lambda row: (row.p, -row.size))),
        along_faults=adjusted[-1] if faults is not None else 1.0,
        rows=len(ps),
    )


def _holm(ps: Sequence[float]) -> list[float]:
    """Adjusted for their number (Holm 1979).

    >>> _holm([0.03, 0.01, 0.5])
    [0.06, 0.03, 0.5]
    """
    least, adjusted = 0.0, [1.0] * len(ps)
    for place, index in enumerate(np.argsort(ps, kind="stable")):
        least = max(least, min(1.0, ps[index] * (len(ps) - place)))
        adjusted[index] = least
    return adjusted


def _difference(name: str, groups: tuple[Group, Group], views: Sequence[np.ndarray]) -> Difference:
    one, other = (group.blocks[name] for group in groups)
    noise, spread = math.hypot(one.noise, other.noise), one.spread + other.spread
    numbers, level = one.mean - other.mean, common(one, other)
    scale = math.hypot(groups[0].count_error, groups[1].count_error)  # by as much both means may be off as a whole
    ps = [_p(view @ numbers, view @ level, noise, spread, scale) for view in (np.eye(numbers.size), *views)]
    p = min(1.0, min(ps) * len(ps))
    return Difference(name=name, numbers=numbers, error=math.sqrt(noise**2 + spread), p=p)


def common(one: Block, other: Block) -> np.ndarray:
    """What both means share, weighted such that its noise tells nothing about the noise in their difference."""
    weight = other.noise**2 / (one.noise**2 + other.noise**2) if one.noise or other.noise else 0.5
    level: np.ndarray = weight * one.mean + (1 - weight) * other.mean
    return level


def _p(numbers: np.ndarray, level: np.ndarray, noise: float, spread: float, scale: float) -> float:
    """How often chance alone makes a difference as large: noise, who the units are, and a count that is off.

    A count that is off moves all of a mean, in its own direction: there the difference is looked at alone, and
    elsewhere without it.
    """
    length = float(np.linalg.norm(level))
    if noise + spread + scale == 0:
        return float(not np.any(np.abs(numbers) > 1e-12))
    unit = level / max(length, 1e-300)
    along = float(numbers @ unit)
    first = 2 * stats.norm.sf(abs(along) / max(math.sqrt(noise**2 + spread + (scale * length) ** 2), 1e-300))
    if numbers.size == 1:
        return float(first)
    across = max(0.0, float(numbers @ numbers) - along**2)
    return float(min(1.0, 2 * min(first, exceeded(across, numbers.size - 1, noise, spread))))


def _along(groups: tuple[Group, Group], directions: Directions) -> float:
    """The smallest p-value in any of the directions, for their number (Bonferroni): a difference that a known fault
    makes stands out there from noise that is spread over hundreds of numbers.

    The directions must not depend on the noise of the difference: take them from public images, or from what both
    releases have in common.
    """
    products, variances, spreads, levels = 0.0, 0.0, 0.0, 0.0
    for name, rows in directions.items():
        one, other = (group.blocks[name] for group in groups)
        noise, spread = math.hypot(one.noise, other.noise), one.spread + other.spread
        weighted = rows / max(noise**2 + spread, 1e-300)
        products = products + weighted @ (one.mean - other.mean)
        levels = levels + weighted @ common(one, other)
        lengths = np.linalg.norm(weighted, axis=1)
        variances = variances + (lengths * noise) ** 2
        spreads = spreads + lengths * math.sqrt(spread)  # all of it in this direction, and together: the worst case
    scale = math.hypot(groups[0].count_error, groups[1].count_error)
    errors = np.sqrt(variances + spreads**2 + (scale * np.abs(levels)) ** 2)
    there = errors > 0
    if not there.any():
        return 1.0
    best = float((np.abs(products)[there] / errors[there]).max())
    return float(min(1.0, 2 * there.sum() * stats.norm.sf(best)))


def exceeded(square: float, size: int, noise: float, spread: float) -> float:
    """P(|x|^2 > square), where x has so many numbers with normal noise, and one of them varies by `spread` as well.

    >>> round(exceeded(6.635, 1, 1.0, 0.0), 4), round(exceeded(4 * 6.635, 1, 1.0, 3.0), 4)
    (0.01, 0.01)
    """
    if noise == 0:
        return float(stats.chi2.sf(square / spread, 1)) if spread else float(square <= 0)
    ratio, scaled = 1 + spread / noise**2, square / noise**2
    if size == 1:
        return float(stats.chi2.sf(scaled / ratio, 1))
    z, density = _grid()  # over the one number that varies more
    return min(1.0, float(density @ stats.chi2.sf(scaled - ratio * z**2, size - 1)))


@functools.cache
def _grid() -> tuple[np.ndarray, np.ndarray]:
    """Where a normal number lies beyond 0, and how likely it is there."""
    step = 0.01
    z = np.arange(step / 2, 9.0, step)
    return z, 2 * stats.norm.pdf(z) * step


def power(change: Mapping[str, np.ndarray], share: float, comparison: Tested, more: float = 1.0) -> float:
    """How likely a change of the first group's means, in a share of its units, is found at LEVEL: by formula.

    `change` is what it does to each block. The chance of the row of the test that shows it best; with so many times
    `more` units in both groups.
    """
    best, level = 0.0, LEVEL / comparison.rows
    scale = math.hypot(*(group.count_error for group in comparison.groups)) / more
    for name, whole in change.items():
        noise, spread = comparison.noise(name) / more, comparison.spread(name) / more
        centre = common(*(group.blocks[name] for group in comparison.groups)) + share * whole / 2
        tested = (np.eye(whole.size), *comparison.views[name])
        for view in tested:
            moved, length = share * (view @ whole), float(np.linalg.norm(view @ centre))
            along = float(moved @ (view @ centre)) / max(length, 1e-300)
            across = np.sqrt(max(0.0, float(moved @ moved) - along**2))
            each = level / (2 * len(tested))
            best = max(best, _power_along(along, noise, spread, scale * length, moved.size, each))
            if moved.size > 1:
                best = max(best, _power(across, moved.size - 1, noise, spread, each))
    return best


def _power_along(moved: float, noise: float, spread: float, scale: float, size: int, level: float) -> float:
    """Of the test of one number; it supposes that units vary in that direction alone, which is the worst."""
    worst = math.sqrt(noise**2 + spread + scale**2)
    error = math.sqrt(noise**2 + spread / size + scale**2)
    if error == 0:
        return float(moved != 0)
    return float(stats.norm.sf((stats.norm.isf(level / 2) * worst - abs(moved)) / error))


def _power(moved: float, size: int, noise: float, spread: float, level: float) -> float:
    """Of a test whose threshold supposes the worst, where units vary as much in one direction as in another."""
    variance = noise**2 + spread / size
    if variance == 0:
        return float(moved != 0)
    bound = _threshold(size, round(spread / max(noise**2, 1e-12 * spread), 6), round(level, 12))
    bound *= max(noise**2, 1e-12 * spread)
    return float(stats.ncx2.sf(bound / variance, size, moved**2 / variance))


@functools.lru_cache(maxsize=4096)
def _threshold(size: int, ratio: float, level: float) -> float:
    """The square that chance exceeds with this probability, in units of the noise."""
    low, high = 0.0, (1 + ratio) * 100.0 + 10.0 * size
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if exceeded(middle, size, 1.0, ratio) > level else (low, middle)
    return high
