"""Which fault explains what two looks differ by, by how much, and on how many units?

A fault of some amount moves the mean of psi; so much of the move as units are affected is what the groups differ by.
Amounts and shares are fitted by likelihood under the known noise. Faults compete with each other and with "something
else", which may be anything: a fault is named only where it wins, and leaves little but what noise explains.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from scipy import stats

from fedlens.models.looks.two_sample import Tested

Amount = tuple[float, ...]
# Chosen on the digits of the test writers and on Fashion-MNIST's test images, dealt to made-up users: docs/looks.md.
MISFIT = 0.15  # of a difference: by as much a fault may miss it because it was tried on other images
STANDING_IN = 0.3  # where these only stand in for images that look alike
CERTAIN = 0.95  # the weight of a fault that is named, among all that were tried
LEFT = 0.08  # of a difference, that a named fault may leave where noise does not explain it
NOISE = 0.05  # or what it leaves is made by noise more often than that
BETWEEN = 5  # amounts that are read off between two neighbours
SHARES = np.linspace(0.02, 1.0, 50)  # of the units, that are affected
WITHIN = 3.84 / 2  # an interval holds what is no less likely than this, in logarithms: 95%


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trace:
    """How a fault moves the mean of psi, for each amount that was tried, by the block."""

    kind: str
    amounts: tuple[Amount, ...]
    moves: Mapping[str, np.ndarray] = dataclasses.field(repr=False)  # [amounts, numbers]
    says: Callable[[Amount], str]
    figure: Callable[[float], str] = "{:.2g}".format
    ordered: bool = False  # amounts are numbers in order, and what lies between can be read off the neighbours
    prior: float = 1.0  # against other faults
    shares: tuple[float, ...] = tuple(SHARES)  # of the units, that are tried; 1 alone where an amount says it

    def within(self, blocks: Collection[str]) -> "Trace":
        """Where both groups have these blocks only: of public images, not all are known."""
        return dataclasses.replace(self, moves={name: rows for name, rows in self.moves.items() if name in blocks})

    @functools.cached_property
    def dense(self) -> "Trace":
        """With amounts in between."""
        if not self.ordered or len(self.amounts) < 2:
            return self
        numbers = np.array([amount[0] for amount in self.amounts])
        places = np.linspace(0, len(numbers) - 1, (len(numbers) - 1) * BETWEEN + 1)
        low = np.minimum(places.astype(int), len(numbers) - 2)
        part = (places - low)[:, None]
        moves = {name: (1 - part) * rows[low] + part * rows[low + 1] for name, rows in self.moves.items()}
        between = (1 - part[:, 0]) * numbers[low] + part[:, 0] * numbers[low + 1]
        return dataclasses.replace(
            self, amounts=tuple((float(number),) for number in between), moves=moves, ordered=False
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """The best that one fault can do."""

    kind: str
    summary: str
    amount: Amount
    interval: tuple[Amount, Amount]  # of each number of the amount, the least and the largest that fit
    share: float  # of the units, more in the first group than in the second; below 0: more in the second
    share_interval: tuple[float, float]
    explains: float  # of the difference, where the fault says anything about it
    weight: float  # how likely it is, of all that was tried
    left_p: float  # how often noise leaves as much as this fault does

    @property
    def fits(self) -> bool:
        return self.left_p > NOISE or self.explains > 1 - LEFT


@dataclasses.dataclass(frozen=True, kw_only=True)
class Explanation:
    """All that was tried, the likeliest first."""

    fits: tuple[Candidate, ...]
    other: float  # the weight of "something else"

    @property
    def named(self) -> Candidate | None:
        best = self.fits[0] if self.fits else None
        return best if best and best.weight >= CERTAIN and best.fits else None


def explained(comparison: Tested, traces: Sequence[Trace], misfit: float = MISFIT) -> Explanation:
    """Of faults whose moves are known."""
    data = _Data.of(comparison, misfit)
    traces = [trace.within(data.numbers) for trace in traces]
    tried = [_Tried.of(data, trace.dense) for trace in traces if data.shows(trace)]
    anything = sum(data.free.values())
    evidence = np.array([one.evidence for one in tried] + [anything])
    weights = np.exp(evidence - evidence.max())
    weights /= weights.sum()
    fits = [one.fit(float(weight)) for one, weight in zip(tried, weights, strict=False)]
    return Explanation(fits=tuple(sorted(fits, key=lambda fit: -fit.weight)), other=float(weights[-1]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Data:
    """The difference of two groups, in units of its error."""

    numbers: Mapping[str, np.ndarray]
    errors: Mapping[str, float]
    free: Mapping[str, float]  # by the block: what "something else" gains there

    @classmethod
    def of(cls, comparison: Tested, misfit: float) -> "_Data":
        numbers, errors = {}, {}
        for row in comparison.differences:
            size = row.numbers.size
            chance = comparison.noise(row.name) ** 2 + comparison.spread(row.name) / size
            real = max(0.0, float(row.numbers @ row.numbers) - size * chance)
            errors[row.name] = math.sqrt(max(chance + misfit**2 * real / size, 1e-18))
            numbers[row.name] = row.numbers / errors[row.name]
        return cls(numbers=numbers, errors=errors, free={name: _gain(row) for name, row in numbers.items()})

    def shows(self, trace: Trace) -> bool:
        """Whether there is anything for a fault to explain, in the blocks that it moves."""
        moved = [name for name, rows in trace.moves.items() if rows.any()]
        square, size = (sum(values) for values in zip(*map(self._square, moved), strict=True)) if moved else (0.0, 0)
        return square > size

    def _square(self, name: str) -> tuple[float, int]:
        numbers = self.numbers[name]
        return float(numbers @ numbers), numbers.size


def _gain(numbers: np.ndarray) -> float:
    """In logarithms: how much likelier numbers are if they may be of any size than if they are noise of size 1."""
    square, size = float(numbers @ numbers), numbers.size
    return 0.0 if square <= size else 0.5 * (square - size - size * math.log(square / size))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Tried:
    trace: Trace
    logs: np.ndarray  # [amounts, shares] of both signs: likelihoods, against nothing at all
    shares: np.ndarray
    free: float  # what is gained in blocks that the fault says nothing about
    data: _Data

    @classmethod
    def of(cls, data: _Data, trace: Trace) -> "_Tried":
        products = squares = 0.0
        for name, rows in trace.moves.items():
            moved = rows / data.errors[name]
            products = products + moved @ data.numbers[name]
            squares = squares + (moved**2).sum(1)
        shares = np.concatenate([-np.array(trace.shares[::-1]), trace.shares])
        logs = np.outer(products, shares) - np.outer(squares, shares**2) / 2
        free = sum(gain for name, gain in data.free.items() if name not in trace.moves)
        return cls(trace=trace, logs=logs, shares=shares, free=free, data=data)

    @property
    def evidence(self) -> float:
        """Over all amounts and shares, each as likely as another."""
        most = self.logs.max()
        return float(most + math.log(np.exp(self.logs - most).mean()) + self.free + math.log(self.trace.prior))

    def fit(self, weight: float) -> Candidate:
        at, share_at = np.unravel_index(self.logs.argmax(), self.logs.shape)
        likely = self.logs >= self.logs.max() - WITHIN
        amounts = np.array(self.trace.amounts)[likely.any(1)]
        shares = self.shares[likely.any(0)]
        explains, left = self._left(int(at), float(self.shares[share_at]))
        return Candidate(
            kind=self.trace.kind,
            summary=self.trace.says(self.trace.amounts[at]),
            amount=self.trace.amounts[at],
            interval=(tuple(amounts.min(0).tolist()), tuple(amounts.max(0).tolist())),
            share=float(self.shares[share_at]),
            share_interval=(float(shares.min()), float(shares.max())),
            explains=explains,
            weight=weight,
            left_p=left,
        )

    def _left(self, at: int, share: float) -> tuple[float, float]:
        """How much of the difference is explained, of what noise does not make; how likely noise makes the rest."""
        before = after = size = 0.0
        for name, rows in self.trace.moves.items():
            numbers = self.data.numbers[name]
            left = numbers - share * rows[at] / self.data.errors[name]
            before, after, size = before + float(numbers @ numbers), after + float(left @ left), size + numbers.size
        explains = 1 - max(0.0, after - size) / (before - size) if before > size else 0.0
        return max(0.0, min(1.0, explains)), float(stats.chi2.sf(after, size))
