"""Who takes part in a release. A sampler draws cohorts and states what a release under it gives away.

| sampler | a unit that comes or goes (add/remove) | a unit whose data change (replace-one) |
|---|---|---|
| Everyone, Balanced | moves the sum by one bound | by two |
| Poisson | by one, if it was drawn | from one side by one to the other, if it was drawn |
| FixedSize | by two, if it was drawn: it displaces another | by two, if it was drawn |

All say the same: whether a unit that takes part may push another out, which that one may remember (`displaces`);
whether releases must come one after the other, each once (`in_turn`); in how many of so many releases the busiest unit
may take part, as far as is known beforehand (`participations`). They `check` data that the guarantee does not hold for,
`selected` if who is in it depends on private data; the `multiplier` of a `loss` is the noise over the bound.
"""

import dataclasses
import math

import numpy as np

from fedlens.core.randomness import Randomness
from fedlens.privacy.losses import ExchangedGaussian, Gaussian, Loss, SampledGaussian


@dataclasses.dataclass(frozen=True, kw_only=True)
class Poisson:
    """Every unit joins independently with probability `rate`; a cohort over `cap` is thinned to `cap` at random.

    `population` is a public upper bound on the number of units, never the private head count. The cap of
    m + 6 sqrt(m) keeps memory bounded and costs nothing measurable (analysis: arXiv 2508.15089).
    """

    rate: float
    population: int
    capped: bool = True

    in_turn = False

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"Expected 0 < rate={self.rate} <= 1.")
        if self.population < 1:
            raise ValueError(f"Expected population={self.population} >= 1.")

    @property
    def cap(self) -> int:
        mean = self.rate * self.population
        return min(self.population, math.ceil(mean + 6 * math.sqrt(mean))) if self.capped else self.population

    @property
    def displaces(self) -> bool:
        return self.cap < self.population

    @property
    def text(self) -> str:
        cohorts = f"cohorts capped at {self.cap:,}" if self.capped else "no cap"
        return f"Poisson with rate {self.rate:g} from at most {self.population:,} units, {cohorts}"

    def check(self, units: int, selected: bool) -> None:
        if units > self.population:
            raise ValueError(f"Expected at most population={self.population} units, as planned; the data holds more.")

    def draw(self, units: int, randomness: Randomness, label: str, release: int) -> np.ndarray:
        self.check(units, selected=False)
        joins = np.flatnonzero(randomness.uniform(f"{label}/join", units) < self.rate)
        if len(joins) <= self.cap:
            return joins
        order = np.argsort(randomness.uniform(f"{label}/thin", len(joins)))
        return np.sort(joins[order[: self.cap]])

    def loss(self, multiplier: float, replaced: bool) -> Loss:
        plain = SampledGaussian(multiplier=multiplier, rate=self.rate, replaced=replaced)
        return dataclasses.replace(plain, population=self.population, cap=self.cap) if self.capped else plain

    def participations(self, releases: int) -> int:
        return releases


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedSize:
    """Exactly `size` units of a `population` whose exact number is public, drawn without replacement.

    A unit that is drawn displaces another, so the sum moves by two bounds whichever way neighbours are defined. On a
    selected population the number itself is private: there it must be declared, knowingly, with `size_is_public`.
    """

    size: int
    population: int
    size_is_public: bool = False

    displaces, in_turn = True, False

    def __post_init__(self) -> None:
        if not 1 <= self.size <= self.population:
            raise ValueError(f"Expected 1 <= size={self.size} <= population={self.population}.")

    def check(self, units: int, selected: bool) -> None:
        if selected and not self.size_is_public:
            raise ValueError(
                "Expected size_is_public for samples of a fixed size from a selection: how many units are in it is"
                " private, unless you declare it public. Poisson sampling needs no such number."
            )
        _as_declared(units, self.population)

    @property
    def text(self) -> str:
        return f"exactly {self.size:,} of {self.population:,} units (a public number), without replacement"

    def draw(self, units: int, randomness: Randomness, label: str, release: int) -> np.ndarray:
        _as_declared(units, self.population)
        return np.sort(np.argsort(randomness.uniform(f"{label}/join", units))[: self.size])

    def loss(self, multiplier: float, replaced: bool) -> Loss:
        if replaced:
            return ExchangedGaussian(multiplier=multiplier / 2, size=self.size, population=self.population)
        return SampledGaussian(multiplier=multiplier / 2, rate=self.size / self.population)

    def participations(self, releases: int) -> int:
        return releases


@dataclasses.dataclass(frozen=True, kw_only=True)
class Balanced:
    """A public schedule: the slot of a unit belongs to one of `groups` groups, which take turns.

    Nothing is amplified, since everyone knows whose turn it is; but a unit takes part in one of `groups` releases only.
    The number of slots is public. A unit that is removed leaves its slot empty: if it moved the others up, it would
    change their turns. So the data must not be a selection, where slots depend on data.
    """

    groups: int
    population: int

    displaces, in_turn = False, True

    def __post_init__(self) -> None:
        if not 1 <= self.groups <= self.population:
            raise ValueError(f"Expected 1 <= groups={self.groups} <= population={self.population}.")

    def check(self, units: int, selected: bool) -> None:
        if selected:
            raise ValueError("Expected whole populations for a balanced schedule: in a selection slots depend on data.")
        _as_declared(units, self.population)

    @property
    def text(self) -> str:
        return (
            f"a public schedule: the {self.population:,} slots in {self.groups:,} groups that take turns; a unit that "
            "is removed leaves its slot empty"
        )

    def draw(self, units: int, randomness: Randomness, label: str, release: int) -> np.ndarray:
        _as_declared(units, self.population)
        return np.arange(release % self.groups, units, self.groups)

    def loss(self, multiplier: float, replaced: bool) -> Loss:
        return Gaussian(multiplier=multiplier / 2 if replaced else multiplier)

    def participations(self, releases: int) -> int:
        return math.ceil(releases / self.groups)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Everyone:
    """Every unit, every time: no amplification, but Gaussians compose exactly and the head count stays private."""

    displaces, in_turn, text = False, False, "every unit in every release"

    def check(self, units: int, selected: bool) -> None:
        pass

    def draw(self, units: int, randomness: Randomness, label: str, release: int) -> np.ndarray:
        return np.arange(units)

    def loss(self, multiplier: float, replaced: bool) -> Loss:
        return Gaussian(multiplier=multiplier / 2 if replaced else multiplier)

    def participations(self, releases: int) -> int:
        return releases


def _as_declared(units: int, population: int) -> None:
    if units != population:
        raise ValueError(f"Expected population={population} units, as declared; the data holds another number.")
