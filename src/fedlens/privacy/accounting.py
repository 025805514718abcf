"""What plans add up to: exact for Gaussians without sampling, privacy-loss distributions (PLD) otherwise."""

import collections
import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence

from scipy import optimize, special

from fedlens.privacy.losses import Gaussian, Loss
from fedlens.privacy.plan import Plan

NO_NOISE = 1e-3  # epsilon would be in the millions: no protection, and not worth computing
_SEARCHED = 20.0  # how much coarser than the stated epsilon's the grid is while noise is searched for
_MOST_STEPS = 2**22  # of the grid; what is coarser for it has an epsilon of 400 or more
ROUNDING = 3e-16  # of mass a release: by less than 2e-16 the powers of transforms were off wherever it was tried
_COARSEST = 500.0  # e to the power of the grid is computed: epsilon would be in the millions
EXACT, PLD = "exact Gaussian (mu-GDP)", "PLD (dp-accounting, pessimistic rounding)"
Losses = Mapping[Loss, int]  # how often each was suffered


def accountant(plans: Iterable[Plan]) -> str:
    return EXACT if all(isinstance(plan.loss, Gaussian) for plan in plans) else PLD


def losses(plans: Iterable[Plan]) -> Losses:
    """What the busiest unit suffers through all releases of all plans."""
    counts: collections.Counter[Loss] = collections.Counter()
    for plan in plans:
        counts[plan.loss] += plan.participations
    return counts


def epsilon(plans: Sequence[Plan], delta: float, coarse: float = 1.0) -> float:
    """The epsilon of all releases of all plans on the same units; infinite where a plan adds no noise.

    Formal guarantee: valid for questions that depend on earlier answers, for the unit and neighbours the plans name.
    The plans themselves must be fixed beforehand, unless all are Gaussians: see `filters`.
    """
    kinds = {(str(plan.unit), str(plan.neighbours)) for plan in plans}
    if len(kinds) > 1:
        raise ValueError(f"Expected one unit and one kind of neighbours to compose, got {sorted(kinds)}.")
    return epsilon_of(losses(plans), delta, coarse)


def epsilon_of(suffered: Losses, delta: float, coarse: float = 1.0) -> float:
    """As `epsilon`, for losses; a `coarse` grid is faster and never cheaper."""
    if not 0 < delta < 1:
        raise ValueError(f"Expected 0 < delta={delta} < 1.")
    if any(loss.multiplier < NO_NOISE for loss in suffered):
        return math.inf
    squares = [count / loss.multiplier**2 for loss, count in suffered.items() if isinstance(loss, Gaussian)]
    mu = math.sqrt(math.fsum(squares))  # Gaussians add up to one, exactly
    sampled = frozenset((loss, count) for loss, count in suffered.items() if not isinstance(loss, Gaussian))
    return _pld_epsilon(mu, sampled, delta, coarse) if sampled else gaussian_epsilon(mu, delta)


@functools.lru_cache(maxsize=4096)
def _pld_epsilon(mu: float, sampled: frozenset[tuple[Loss, int]], delta: float, coarse: float) -> float:
    smallest = min(loss.multiplier for loss, _ in sampled)
    step = max(grid(smallest, coarse), 1e-4 * coarse * mu**2 / 100, _spread(sampled) / _MOST_STEPS)
    if step > _COARSEST:
        return math.inf
    first, *others = [loss.pld(step).self_compose(count) for loss, count in sampled]
    gaussian = [Gaussian(multiplier=1 / mu).pld(step)] if mu else []
    whole = functools.reduce(lambda left, right: left.compose(right), [*others, *gaussian], first)
    safe = delta - ROUNDING * sum(count for _, count in sampled)
    return float(whole.get_epsilon_for_delta(safe)) if safe > 0 else math.inf


def _spread(sampled: Iterable[tuple[Loss, int]]) -> float:
    """About how far composed losses reach: a million releases of weak noise would fill all memory on a fine grid."""
    total = 0.0
    for loss, count in sampled:
        rate, square = (1.0 if isinstance(loss, Gaussian) else loss.rate), min(loss.multiplier**-2, 50.0)
        total += count * rate * min(1.0, rate * math.expm1(square) / square) * loss.multiplier**-2
    return total


def grid(multiplier: float, coarse: float = 1.0) -> float:
    """Losses spread over 1/z^2: a coarser grid keeps weak noise affordable, and rounding stays on the safe side."""
    return 1e-4 * coarse * max(1.0, multiplier**-2)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The exact delta of mu-Gaussian DP at epsilon (Balle and Wang 2018)."""
    upper, lower = special.log_ndtr(mu / 2 - epsilon / mu), epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
    return float(-math.exp(upper) * math.expm1(min(0.0, lower - upper)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The epsilon of T Gaussians without sampling is that of one with mu = sqrt(T) / z.

    >>> round(gaussian_epsilon(150**0.5 / 7, 1e-5), 2), round(gaussian_epsilon(60**0.5 / 15, 1e-5), 2)
    (8.49, 2.07)
    """
    if mu == 0 or gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(mu, high) > delta:
        high *= 2
    root = float(optimize.brentq(lambda e: gaussian_delta(mu, e) - delta, 0.0, high, xtol=1e-12, rtol=1e-12))
    return root * (1 + 1e-9) + 1e-9  # never under the root that was sought


def calibrated(plan: Plan, target: float, delta: float, others: tuple[Plan, ...] = ()) -> Plan:
    if not target > 0:
        raise ValueError(f"Expected epsilon={target} > 0.")
    if others and (floor := epsilon(others, delta)) >= target:
        raise ValueError(f"Expected epsilon={target} above the {floor:.3g} that the run's other releases cost already.")

    def excess(log_z: float) -> float:
        plans = [dataclasses.replace(plan, noise_multiplier=math.exp(log_z)), *others]
        cost = epsilon(plans, delta, coarse=_SEARCHED)
        return math.log(max(cost, 1e-300) / target)  # nothing at all, at a large delta

    low, high = 0.0, 0.0
    while excess(high) > 0:
        low, high = high, high + math.log(2)
        if high > math.log(1e6):
            raise ValueError(f"Expected epsilon={target} within reach of noise_multiplier <= 1e6 at delta={delta}.")
    while low == high or excess(low) <= 0:
        low, high = low - math.log(2), low
        if low < math.log(NO_NOISE):
            raise ValueError(f"Expected epsilon={target} to ask for noise; any noise_multiplier over {NO_NOISE} does.")
    # Epsilon falls smoothly with log z: Brent's method needs a handful of the slow evaluations, bisection twenty.
    root = float(optimize.brentq(excess, low, high, xtol=1e-4))
    while excess(root) > 0:
        root += 1e-4
    return dataclasses.replace(plan, noise_multiplier=math.exp(root))
