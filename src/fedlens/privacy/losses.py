"""What one release gives away in the worst case: the pair of distributions an accountant has to tell apart.

A sampler turns noise and neighbours into one of these; `accounting` composes them. Multipliers are standard deviations
over the distance that a unit which takes part can move the sum.
"""

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

_TAIL = 10.0  # standard deviations beyond which less than e^-50 lies


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gaussian:
    """Whoever takes part is known: N(0, z^2) against N(1, z^2)."""

    multiplier: float

    def pld(self, grid: float) -> "PrivacyLossDistribution":
        from dp_accounting.pld import privacy_loss_distribution

        return privacy_loss_distribution.from_gaussian_mechanism(self.multiplier, value_discretization_interval=grid)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledGaussian:
    """Each unit joins on its own with probability `rate`; of `population` units at most `cap` are kept, if it is given.

    `replaced`: both worlds hold the unit, with data that differ: rate N(1) + ... against rate N(-1) + ...
    """

    multiplier: float
    rate: float
    replaced: bool = False
    population: int | None = None
    cap: int | None = None

    def pld(self, grid: float) -> "PrivacyLossDistribution":
        from dp_accounting import NeighboringRelation
        from dp_accounting.pld import privacy_loss_distribution

        # The library doubles the distance of replace-one by itself here, unlike its RDP accountant.
        kind = NeighboringRelation.REPLACE_ONE if self.replaced else NeighboringRelation.ADD_OR_REMOVE_ONE
        if self.cap is None or self.population is None or self.cap >= self.population:
            return privacy_loss_distribution.from_gaussian_mechanism(
                self.multiplier,
                sampling_prob=self.rate,
                value_discretization_interval=grid,
                neighboring_relation=kind,
            )
        return privacy_loss_distribution.from_truncated_subsampled_gaussian_mechanism(
            self.population,
            self.rate,
            self.cap,
            self.multiplier,
            value_discretization_interval=grid,
            neighboring_relation=kind,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExchangedGaussian:
    """Samples of a fixed size, neighbours that replace one unit: with probability q = size / population the sum moves.

    The pair is (1-q) r + q p against (1-q) r + q p', where p, p' and r differ by one displaced or replaced unit. Its
    profile is q H(N(1) || N(0)) at 1 + (e^epsilon - 1) / q by advanced joint convexity (Balle et al. 2018), and by
    symmetry the mirror image for negative epsilons (Zhu, Dong, Wang 2022).
    """

    multiplier: float
    size: int
    population: int

    @property
    def rate(self) -> float:
        return self.size / self.population

    def delta(self, epsilon: np.ndarray) -> np.ndarray:
        """The profile: the largest delta at each epsilon."""
        size = np.abs(epsilon)
        inner = size - math.log(self.rate) + np.log1p((self.rate - 1) * np.exp(-size))  # ln(1 + (e^size - 1) / q)
        mu = 1 / self.multiplier
        gain = special.ndtr(mu / 2 - inner / mu) - np.exp(inner + special.log_ndtr(-mu / 2 - inner / mu))
        positive = self.rate * np.maximum(gain, 0.0)
        return np.where(epsilon >= 0, positive, -np.expm1(-size) + np.exp(-size) * positive)

    def pld(self, grid: float) -> "PrivacyLossDistribution":
        from dp_accounting.pld import pld_pmf, privacy_loss_distribution

        mu = 1 / self.multiplier
        largest = max(grid, mu * mu / 2 + _TAIL * mu + math.log(self.rate))  # beyond it: infinite loss, pessimistically
        steps = np.arange(-math.ceil(largest / grid), math.ceil(largest / grid) + 1)
        pmf = pld_pmf.create_pmf_pessimistic_connect_dots(grid, steps, self.delta(steps * grid))
        return privacy_loss_distribution.PrivacyLossDistribution(pmf)


Loss = Gaussian | SampledGaussian | ExchangedGaussian
