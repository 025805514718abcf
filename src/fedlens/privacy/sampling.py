"""Who takes part in a release. A sampler draws cohorts and states the event that prices them."""

import dataclasses
import math
from typing import TYPE_CHECKING, Protocol

import numpy as np

from fedlens.randomness import Randomness

if TYPE_CHECKING:
    import dp_accounting


class Sampling(Protocol):
    @property
    def text(self) -> str: ...

    def draw(self, units: int, randomness: Randomness, label: str) -> np.ndarray: ...

    def event(self, noise_multiplier: float) -> "dp_accounting.DpEvent": ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Poisson:
    """Every unit joins independently with probability `rate`; a cohort over `cap` is thinned to `cap` at random.

    `population` is a public upper bound on the number of units, never the private head count. The cap of
    m + 6 sqrt(m) keeps memory bounded and costs nothing measurable (analysis: arXiv 2508.15089).
    """

    rate: float
    population: int

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"Expected 0 < rate={self.rate} <= 1.")
        if self.population < 1:
            raise ValueError(f"Expected population={self.population} >= 1.")

    @property
    def cap(self) -> int:
        mean = self.rate * self.population
        return min(self.population, math.ceil(mean + 6 * math.sqrt(mean)))

    @property
    def text(self) -> str:
        return f"Poisson with rate {self.rate:g} from at most {self.population:,} units, cohorts capped at {self.cap:,}"

    def draw(self, units: int, randomness: Randomness, label: str) -> np.ndarray:
        if units > self.population:
            raise ValueError(f"Expected at most population={self.population} units, as planned; the data holds more.")
        joins = np.flatnonzero(randomness.uniform(f"{label}/join", units) < self.rate)
        if len(joins) <= self.cap:
            return joins
        order = np.argsort(randomness.uniform(f"{label}/thin", len(joins)))
        return np.sort(joins[order[: self.cap]])

    def event(self, noise_multiplier: float) -> "dp_accounting.DpEvent":
        from dp_accounting import dp_event

        return dp_event.TruncatedSubsampledGaussianDpEvent(
            dataset_size=self.population,
            sampling_probability=self.rate,
            truncated_batch_size=self.cap,
            noise_multiplier=noise_multiplier,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Everyone:
    """Every unit, every time: no amplification, but Gaussians compose exactly and the head count stays private."""

    @property
    def text(self) -> str:
        return "every unit in every release"

    def draw(self, units: int, randomness: Randomness, label: str) -> np.ndarray:
        return np.arange(units)

    def event(self, noise_multiplier: float) -> "dp_accounting.DpEvent":
        from dp_accounting import dp_event

        return dp_event.GaussianDpEvent(noise_multiplier)
