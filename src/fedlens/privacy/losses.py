"""What one release gives away in the worst case: the pair of distributions an accountant has to tell apart.

A sampler turns noise and neighbours into one of these; `accounting` composes them. Multipliers are standard deviations
over the distance that a unit which takes part can move the sum.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from scipy import special, stats

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    from fedlens.privacy.pmfs import GridPmf

_TAIL = 10.0  # standard deviations beyond which less than e^-50 lies


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gaussian:
    """Whoever takes part is known: N(0, z^2) against N(1, z^2)."""

    multiplier: float

    def pld(self, grid: float) -> "PrivacyLossDistribution":
        from dp_accounting.pld import privacy_loss_distribution

        return privacy_loss_distribution.PrivacyLossDistribution(
            _dotted("REMOVE", _removed, self.multiplier, 1.0, grid)
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledGaussian:
    """Each of at most `population` units joins on its own with probability `rate`; `cap` are kept, if it is given.

    `replaced`: both worlds hold the unit, with data that differ: rate N(1) + ... against rate N(-1) + ...
    """

    multiplier: float
    rate: float
    replaced: bool = False
    population: int | None = None
    cap: int | None = None

    @property
    def displacing(self) -> float:
        """How likely it is, at most, that the others fill the cap, so that we push one of them out if we are drawn."""
        if self.cap is None or self.population is None or self.cap >= self.population:
            return 0.0
        return float(stats.binom.sf(self.cap - 1, self.population - 1, self.rate))

    def pld(self, grid: float) -> "PrivacyLossDistribution":
        from dp_accounting.pld import privacy_loss_distribution

        pmfs = self._capped(grid) if self.displacing else self._plain(grid)
        return privacy_loss_distribution.PrivacyLossDistribution(*pmfs)

    def _plain(self, grid: float) -> "list[GridPmf]":
        # The library doubles the distance of replace-one by itself here, unlike its RDP accountant.
        kinds = ["REPLACE"] if self.replaced else ["REMOVE", "ADD"]
        pairs = zip(kinds, self._profiles, strict=True)
        return [_dotted(kind, profile, self.multiplier, self.rate, grid) for kind, profile in pairs]

    def _capped(self, grid: float) -> "list[GridPmf]":
        """Whether the others fill the cap does not depend on us: a mixture of two cases, and told which.

        Then we displace one of them, so that the sum moves twice as far, with a probability of at most `rate`. (The
        library's own bound also counts on our being pushed out ourselves, which fails for fewer than `population`.)
        """
        rare, near, far = self.displacing, 1 / self.multiplier, 2 / self.multiplier
        steps = _steps(far, self.rate, grid)
        displaced = [_exchanged] if self.replaced else [_removed, _added]
        pmfs = []
        for usual, moved in zip(self._profiles, displaced, strict=True):
            deltas = (1 - rare) * usual(steps * grid, near, self.rate) + rare * moved(steps * grid, far, self.rate)
            pmfs.append(_pmf(steps, grid, deltas))
        return pmfs

    @property
    def _profiles(self) -> "list[Profile]":
        return [_replaced] if self.replaced else [_removed, _added]


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
        return _exchanged(epsilon, 1 / self.multiplier, self.rate)

    def pld(self, grid: float) -> "PrivacyLossDistribution":
        from dp_accounting.pld import privacy_loss_distribution

        steps = _steps(1 / self.multiplier, self.rate, grid)
        return privacy_loss_distribution.PrivacyLossDistribution(_pmf(steps, grid, self.delta(steps * grid)))


Loss = Gaussian | SampledGaussian | ExchangedGaussian
Profile = Callable[[np.ndarray, float, float], np.ndarray]  # deltas at epsilons, of a distance and a rate


def _steps(mu: float, rate: float, grid: float) -> np.ndarray:
    """Losses up to where no mass is left: ln(1 + q (e^M - 1)), M the largest loss of a Gaussian without sampling."""
    largest = mu * mu / 2 + _TAIL * mu
    ends = math.ceil((largest + math.log(rate + (1 - rate) * math.exp(-largest))) / grid) + 1
    return np.arange(-ends, ends + 1)


def _pmf(steps: np.ndarray, grid: float, deltas: np.ndarray) -> "GridPmf":
    from fedlens.privacy.pmfs import GridPmf

    return GridPmf.connected(grid, int(steps[0]), np.clip(deltas, 0, 1))


def _dotted(kind: str, profile: Profile, multiplier: float, rate: float, grid: float) -> "GridPmf":
    """On the library's own range of losses; it finds the same deltas one by one, which takes ten times as long."""
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

    library = GaussianPrivacyLoss(multiplier, sampling_prob=rate, adjacency_type=AdjacencyType[kind])
    ends = library.connect_dots_bounds()
    steps = np.arange(math.floor(ends.epsilon_lower / grid), math.ceil(ends.epsilon_upper / grid) + 1)
    return _pmf(steps, grid, profile(steps * grid, 1 / multiplier, rate))


def _exchanged(epsilon: np.ndarray, mu: float, rate: float) -> np.ndarray:
    return _mirrored(epsilon, _removed(np.abs(epsilon), mu, rate))


def _replaced(epsilon: np.ndarray, mu: float, rate: float) -> np.ndarray:
    """(1-q) N(0) + q N(mu) against (1-q) N(0) + q N(-mu), which mirror each other."""
    size, others = np.abs(epsilon), float(_log1p(np.array(-rate)))
    root = mu * mu / 2 + others - math.log(rate) + size / 2 + _log1p(-np.exp(-size)) - math.log(2)
    where = -(np.logaddexp(np.logaddexp(0, 2 * root) / 2, root) + size / 2) / mu  # left of it, the first is likelier
    upper = (1 - rate) * special.ndtr(where) + rate * special.ndtr(where + mu)
    lower = np.logaddexp(others + special.log_ndtr(where), math.log(rate) + special.log_ndtr(where - mu))
    return _mirrored(epsilon, np.maximum(upper - np.exp(size + lower), 0.0))


def _mirrored(epsilon: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """The profile of a pair that mirrors itself, from what it is at the sizes of epsilons."""
    size = np.abs(epsilon)
    return np.where(epsilon >= 0, positive, -np.expm1(-size) + np.exp(-size) * positive)


def _removed(epsilon: np.ndarray, mu: float, rate: float) -> np.ndarray:
    """(1-q) N(0) + q N(mu) against N(0): q H(N(mu) || N(0)) at 1 + (e^epsilon - 1) / q; below ln(1-q) all of it."""
    inner = epsilon - math.log(rate) + _log1p((rate - 1) * np.exp(np.minimum(-epsilon, 700.0)))
    gain = special.ndtr(mu / 2 - inner / mu) - np.exp(inner + special.log_ndtr(-mu / 2 - inner / mu))
    below: np.ndarray = -np.expm1(np.minimum(epsilon, 0.0))
    divergence: np.ndarray = np.where(np.isneginf(inner), below, rate * np.maximum(gain, 0.0))
    return divergence


def _added(epsilon: np.ndarray, mu: float, rate: float) -> np.ndarray:
    """N(0) against (1-q) N(0) + q N(mu); above -ln(1-q) nothing."""
    inner = -epsilon - math.log(rate) + _log1p((rate - 1) * np.exp(np.minimum(epsilon, 700.0)))
    where = inner / mu + mu / 2  # left of it, N(0) is the likelier
    weight = np.exp(np.minimum(epsilon, 700.0))
    gain = (1 - weight * (1 - rate)) * special.ndtr(where) - rate * np.exp(epsilon + special.log_ndtr(where - mu))
    return np.where(np.isneginf(inner), 0.0, np.maximum(gain, 0.0))


def _log1p(values: np.ndarray) -> np.ndarray:
    """Minus infinity where the logarithm has no value."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(values > -1, np.log1p(np.maximum(values, -1.0)), -np.inf)
