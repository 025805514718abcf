"""Noise that is correlated across releases, for cohorts the server cannot sample: DP-FTRL and banded factorizations.

Releases x (T rows, each a sum of contributions) are published as x + C^-1 z with z independent Gaussian rows, which is
post-processing of C x + z for a public lower-triangular `strategy` C. Later noise cancels earlier noise in the running
sums a learner uses; the price depends on C only through how far one unit moves C x.

Kairouz et al. 2021, Practical and private (deep) learning without sampling or shuffling (BinaryTree); Denisov et al.
2022, Improved differential privacy for SGD via optimal private linear operators on adaptive streams; Choquette-Choo et
al. 2023, (Amplified) banded matrix factorization (Banded).
"""

import dataclasses
import functools
import json
import math
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedlens.privacy.bounds import L2Clip, at_least_one
from fedlens.privacy.plan import BOUNDS, Neighbours, Plan, Unit, check_promise, read_back, written
from fedlens.privacy.sampling import Balanced, Everyone

Array = npt.NDArray[np.float64]
NoiseRow = Any  # an array or a tensor: it adds, subtracts and scales
Memory = tuple[NoiseRow, ...]  # what the next row of noise needs of those before it
_NO_NOISE = 1e-3  # as in `accounting`: under it epsilon would be in the millions
# What the search for the heaviest pattern may hold and do: 0.5 GB and a few seconds. Enough for 20,000 releases of
# independent noise that everyone may be in, or for 10,000 of 2,000 bands with participations 1,000 releases apart.
_MOST_PAIRS, _MOST_STEPS = 2**24, 2**29


class Strategy(Protocol):
    """A lower-triangular C without negative entries, for any number of releases T."""

    @property
    def reach(self) -> int:
        """Columns that are so many or more releases apart are orthogonal."""

    def products(self, releases: int, gap: int) -> Array:
        """At each j < T, the inner product of the columns j - gap and j; zero where there is no column j - gap."""

    def prefix_variances(self, releases: int) -> Array:
        """The squared norms of the rows of A C^-1, where A sums prefixes."""

    def step(self, memory: Memory, row: NoiseRow, release: int, releases: int) -> tuple[NoiseRow, Memory]:
        """The next row of C^-1 z from the next row of z, and the memory that the one after it needs; () at first."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Identity:
    """C = I: independent noise, the plain Gaussian mechanism."""

    @property
    def reach(self) -> int:
        return 1

    def products(self, releases: int, gap: int) -> Array:
        return np.full(releases, float(gap == 0))

    def prefix_variances(self, releases: int) -> Array:
        return np.arange(1.0, releases + 1)

    def step(self, memory: Memory, row: NoiseRow, release: int, releases: int) -> tuple[NoiseRow, Memory]:
        return row, ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Banded:
    """The first `bands` diagonals of the square root of A, every column scaled to norm 1, the last ones too."""

    bands: int

    def __post_init__(self) -> None:
        at_least_one("bands", self.bands)

    @property
    def reach(self) -> int:
        return self.bands

    def products(self, releases: int, gap: int) -> Array:
        root, norms, products = self._root(releases), self._norms(releases), np.zeros(releases)
        if gap < len(root):
            sums = np.cumsum(root[: len(root) - gap] * root[gap:])  # over the rows from the later column's first on
            rows = np.minimum(len(sums), releases - np.arange(gap, releases))
            products[gap:] = sums[rows - 1] / (norms[: releases - gap] * norms[gap:])
        return products

    def prefix_variances(self, releases: int) -> Array:
        from scipy import signal

        # C = R / norms with R Toeplitz: row t of A C^-1 adds norms[t] times row t of R^-1 to the row before it.
        inverse = signal.lfilter([1.0], self._root(releases), np.eye(1, releases)[0])
        row, variances = np.zeros(releases), np.empty(releases)
        for release, norm in enumerate(self._norms(releases)):
            row[: release + 1] += norm * inverse[release::-1]
            variances[release] = row @ row
        return variances

    def step(self, memory: Memory, row: NoiseRow, release: int, releases: int) -> tuple[NoiseRow, Memory]:
        weights = self._root(releases).tolist()[1:]
        solved = row - sum(weight * solved_before for weight, solved_before in zip(weights, memory, strict=False))
        return float(self._norms(releases)[release]) * solved, (solved, *memory)[: len(weights)]

    def _root(self, releases: int) -> Array:
        """The coefficients of (1 - x)^(-1/2): A is the Toeplitz matrix of 1 / (1 - x)."""
        powers = np.arange(1.0, min(self.bands, releases))
        return np.cumprod(np.concatenate([[1.0], 1 - 0.5 / powers]))

    def _norms(self, releases: int) -> Array:
        """Of the columns before they are scaled; the end of the matrix cuts the last ones short."""
        root = self._root(releases)
        norms: Array = np.sqrt(np.cumsum(root**2))[np.minimum(len(root), releases - np.arange(releases)) - 1]
        return norms


@dataclasses.dataclass(frozen=True, kw_only=True)
class BinaryTree:
    """A binary tree over every `restart` releases; a prefix is the plain sum of the noisy nodes that tile it.

    Such tiles are left children only, and exactly one of them ends at each release. So C is square: its row t (from 1,
    within a restart) sums the last lowbit(t) releases. The first release is in floor(log2(restart)) + 1 nodes.
    """

    restart: int

    def __post_init__(self) -> None:
        at_least_one("restart", self.restart)

    @property
    def reach(self) -> int:
        return self.restart

    def products(self, releases: int, gap: int) -> Array:
        """How many nodes hold both releases."""
        late = np.arange(releases)
        block, place, other = late // self.restart, late % self.restart, (late - gap) % self.restart
        same, size = (late - gap) // self.restart == block, np.minimum(self.restart, releases - block * self.restart)
        nodes = np.zeros(releases)
        for level in range(min(self.restart, releases).bit_length()):
            node = place >> level
            nodes += same & (node == other >> level) & (node % 2 == 0) & ((node + 1) << level <= size)
        return nodes

    def prefix_variances(self, releases: int) -> Array:
        every = self.restart.bit_count()
        counts = [t // self.restart * every + (t % self.restart).bit_count() for t in range(1, releases + 1)]
        return np.array(counts, dtype=np.float64)

    def step(self, memory: Memory, row: NoiseRow, release: int, releases: int) -> tuple[NoiseRow, Memory]:
        """The memory holds the latest node of each level: a new node takes the place of those it is made of."""
        place = release % self.restart + 1
        level = (place & -place).bit_length() - 1
        return row - sum(memory[:level]), (*memory[:level], row, *memory[level + 1 :])


STRATEGIES: dict[str, Any] = {"identity": Identity, "banded": Banded, "tree": BinaryTree}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatrixPlan:
    """The promise about `releases` that share correlated noise; the matrix twin of `Plan`.

    Formal guarantee: x + C^-1 z is mu-Gaussian DP with mu = sensitivity / stddev, for contributions within the bound
    that may depend on all earlier releases (Denisov et al. 2022, Theorem 2.1), as long as each unit takes part at most
    `participations` times, any two of them at least `separation` releases apart. Add/remove means that the
    contributions of the unit vanish and nobody else's schedule moves; no cohort needs to be random or secret.

    >>> plan = MatrixPlan(strategy=Banded(bands=250), bound=L2Clip(norm=0.05), noise_multiplier=4.0, releases=1000,
    ...                   participations=4, separation=250, slots=250_000, expected_contributors=1000.0)
    >>> round(plan.epsilon(4e-8), 2), round(plan.calibrated(2.38, 4e-8).noise_multiplier, 3)
    (2.58, 4.308)
    >>> round(plan.prefix_error(), 1), round(dataclasses.replace(plan, strategy=Identity()).prefix_error(), 1)
    (12.8, 89.5)
    """

    strategy: Identity | Banded | BinaryTree
    bound: L2Clip
    noise_multiplier: float  # standard deviation of one row of z / bound.norm
    releases: int
    participations: int
    separation: int
    expected_contributors: float  # the public divisor, never the realised cohort
    slots: int | None = None  # the public number of units, if they take turns: see `Balanced`
    unit: Unit = Unit.USER
    neighbours: Neighbours = Neighbours.ADD_REMOVE

    in_turn = True  # every row of noise needs those before it
    shards = None

    def __post_init__(self) -> None:
        check_promise(self.noise_multiplier, self.releases, self.expected_contributors)
        for name in ("participations", "separation"):
            at_least_one(name, getattr(self, name))
        pairs = max(0, min(self.strategy.reach, self.releases) - self.separation)
        times = min(self.participations, 1 + (self.releases - 1) // self.separation)
        if self.releases * pairs > _MOST_PAIRS or self.releases * (pairs + 1) * times > _MOST_STEPS:
            raise ValueError("Expected fewer releases, bands or participations: the price would take too long.")
        if self._groups > 1 and ((self.slots or 0) < self._groups or self.unit == Unit.EXAMPLE):
            raise ValueError(
                f"Expected slots={self.slots} >= {self._groups}, of users or silos, in groups that take turns: with"
                f" participations={self.participations} and separation={self.separation} not everyone may always come."
            )

    @property
    def _groups(self) -> int:
        """The fewest that, taking turns, bring nobody sooner or more often than promised."""
        return min(self.releases, max(self.separation, math.ceil(self.releases / self.participations)))

    @property
    def sampling(self) -> Everyone | Balanced:
        return Balanced(groups=self._groups, population=self.slots or 0) if self._groups > 1 else Everyone()

    @property
    def who(self) -> str:
        """Who takes part, in words."""
        return self.sampling.text

    @property
    def sensitivity(self) -> float:
        """How far C x moves between neighbours, over all releases together; derived, never set.

        Changed data move it by at most twice what vanished data do, even if they come with another schedule.
        """
        return self._scale * self.priced_as.sensitivity

    @property
    def _scale(self) -> float:
        """How far contributions of norm 1 move C x."""
        return math.sqrt(squared_sensitivity(self.strategy, self.releases, self.participations, self.separation))

    @property
    def priced_as(self) -> Plan:
        """One plain release that costs exactly as much as all of these together: C x + z is one Gaussian."""
        return Plan(
            sampling=Everyone(),
            bound=self.bound,
            noise_multiplier=self.noise_multiplier / self._scale,
            releases=1,
            expected_contributors=self.expected_contributors,
            unit=self.unit,
            neighbours=self.neighbours,
        )

    @property
    def stddev(self) -> float:
        """Of each row of z, before C^-1 correlates them."""
        return self.noise_multiplier * self.bound.norm

    @property
    def grid(self) -> float:
        return self.priced_as.grid

    def epsilon(self, delta: float) -> float:
        """Exact for the derived sensitivity; infinite without noise."""
        return self.priced_as.epsilon(delta)

    def calibrated(self, epsilon: float, delta: float) -> "MatrixPlan":
        """The plan with the least noise that keeps it within (epsilon, delta)."""
        if not 0 < epsilon < math.inf:
            raise ValueError(f"Expected 0 < epsilon={epsilon} < inf.")
        scale = self.sensitivity / self.bound.norm
        low, high = math.log(_NO_NOISE * scale), math.log(1e6 * scale)
        if self._with_log_noise(high).epsilon(delta) > epsilon:
            raise ValueError(f"Expected epsilon={epsilon} within reach of noise 1e6 sensitivities at delta={delta}.")
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if self._with_log_noise(middle).epsilon(delta) <= epsilon else (middle, high)
        return self._with_log_noise(high)

    def _with_log_noise(self, log_z: float) -> "MatrixPlan":
        return dataclasses.replace(self, noise_multiplier=math.exp(log_z))

    def prefix_error(self) -> float:
        """The root mean square of the noise in the running sums of all releases, in units of the bound."""
        return self.noise_multiplier * math.sqrt(self.strategy.prefix_variances(self.releases).mean())

    def correlated(self, rows: Iterable[NoiseRow]) -> Iterator[NoiseRow]:
        """The rows of C^-1 z, one for each release, from those of z; remembers no more rows than the strategy needs."""
        memory: Memory = ()
        for release, row in zip(range(self.releases), rows, strict=False):
            noise, memory = self.strategy.step(memory, row, release, self.releases)
            yield noise

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the ledger, the run folder and the wire; `from_dict` reads them back."""
        return written(self, strategy=STRATEGIES, bound=BOUNDS)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "MatrixPlan":
        return cls(**read_back(cls, values, strategy=STRATEGIES, bound=BOUNDS))

    def canonical(self) -> str:
        return json.dumps(self.to_dict(), sort_keys=True)


Promise = Plan | MatrixPlan


def promised(values: dict[str, Any]) -> Promise:
    """Reads back what `to_dict` of either kind of plan wrote."""
    return MatrixPlan.from_dict(values) if "strategy" in values else Plan.from_dict(values)


@functools.lru_cache(maxsize=256)
def squared_sensitivity(strategy: Strategy, releases: int, participations: int, separation: int) -> float:
    """The most that contributions of norm 1 can move C x, squared; exact where reach <= 2 separation, else a bound.

    Proof. A unit that takes part at p_1 < ... < p_n, with rows u_a of norm at most 1, moves C x by sum_a c_(p_a) u_a^T,
    of squared norm sum_(a,b) <c_(p_a), c_(p_b)> <u_a, u_b>. C has no negative entry, so equal u_a are the worst, and
    what is left is the heaviest pattern under the weights <c_i, c_j> >= 0. It is searched for by the last release j:

        best_n(j) = <c_j, c_j> + max_(i <= j - separation) (best_(n-1)(i) + 2 <c_i, c_j>) + 2 sum_(2 <= s < n) far_s(j)

    with far_s(j) = max_(i <= j - s separation) <c_i, c_j>: the one s before the latest is at least that far away. This
    counts each pair at no less than its weight. Pairs of s >= 2 weigh nothing if reach <= 2 separation.
    """
    alone = strategy.products(releases, 0)
    pairs = [strategy.products(releases, gap) for gap in range(separation, min(strategy.reach, releases))]
    far = np.maximum.accumulate(pairs[::-1])[::-1] if pairs else pairs
    best, added, heaviest = alone, np.zeros(releases), alone.max()
    for count in range(2, min(participations, 1 + (releases - 1) // separation) + 1):
        if count > 2 and (nearest := (count - 2) * separation) < len(pairs):
            added = added + 2 * far[nearest]
        best = alone + added + _extended(best, pairs, separation)
        heaviest = max(heaviest, best.max())
    return float(heaviest)


def _extended(best: Array, pairs: list[Array], separation: int) -> Array:
    """At each release, the heaviest pattern that can precede it, together with its pair with the latest of it."""
    heaviest = _later(np.maximum.accumulate(best), separation + len(pairs))
    for gap, pair in enumerate(pairs, separation):
        heaviest = np.maximum(heaviest, _later(best, gap) + 2 * pair)
    return heaviest


def _later(values: Array, gap: int) -> Array:
    return np.concatenate([np.full(gap, -np.inf), values])[: len(values)]
