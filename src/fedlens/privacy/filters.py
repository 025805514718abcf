"""What plans may be chosen after looking at earlier answers: a privacy filter that counts in Gaussians.

Privacy-loss distributions compose plans that were all fixed beforehand. Whoever picks the next plan after looking can
pick the one whose losses suit what was seen, and together such plans exceed the epsilon at which each one fitted. Only
Gaussians compose exactly, however they are chosen. So every other plan is charged as a Gaussian that gives away at
least as much at *every* epsilon, whatever was seen before.

Formal guarantee (`docs/design.md` has the sources). Fix the budget's epsilon and delta, and the `SLACK`. If at any time
the squares charged for all plans that were begun or set aside, summed up for a unit, have an `epsilon` within it, then
all answers together are (epsilon, delta)-DP, however plans, questions and the moment to stop depend on answers.

Proof. Let L be the loss so far of the unit's presence against its absence, psi(l) = max(0, 1 - e^(epsilon - l)), so
that delta is E psi(L) at the end; R the independent losses of the releases that begun plans have still to make, G(v)
the loss of a Gaussian with the square v that is left, and d the slack that is left. E psi(L + G(v) + R) + d never grows
on average. A release takes its loss from R into L: what is asked may depend on L, and its pair is dominated. To begin a
plan puts its releases into R and takes mu^2 off v and its slack off d: by `equivalent` its pair is dominated by that
of the Gaussian, up to the slack, and domination survives composition with the rest. To stop leaves out losses, which
never adds to it. In the beginning it is at most (1 - SLACK) delta + SLACK delta. Gaussian plans go from v to R one
release at a time, so what they have not released can be returned; other plans are owed whole once they are begun.
"""

import functools
import math

import numpy as np
from scipy import special

from fedlens.privacy import accounting
from fedlens.privacy.losses import ExchangedGaussian, Gaussian, Loss, SampledGaussian

SLACK = 1e-3  # the share of delta that is kept for the far tails of sampled plans, all of them together
_POINTS = 4_000  # of epsilons at which a plan and its Gaussian are compared
_COARSE = 20.0  # of the grid of losses: quick, never cheaper, and dearer by less than a tenth of a percent


def slack(number: int, delta: float) -> float:
    """What the tails of the `number`-th sampled plan of a population, from 1 on, may weigh: 1/2, 1/6, 1/12... of all.

    >>> sum(slack(number, 1.0) for number in range(1, 10_000)) <= SLACK
    True
    """
    if number < 1:
        raise ValueError(f"Expected number={number} >= 1.")
    return SLACK * delta / (number * (number + 1))


def epsilon(squares: float, delta: float) -> float:
    """What charges that add up to `squares` come to, at the budget's delta."""
    return accounting.gaussian_epsilon(math.sqrt(squares), delta * (1 - SLACK)) if squares < math.inf else math.inf


def square(loss: Loss, count: int, left: float) -> float:
    """The charge of so many releases, fixed beforehand, if tails of a mass of `left` may be left out.

    For Gaussians it is exact, and nothing is left out.
    """
    if loss.multiplier < accounting.NO_NOISE:
        return math.inf
    if isinstance(loss, Gaussian):
        return count / loss.multiplier**2
    return min(equivalent(loss, count, left) ** 2, count * (_distance(loss) / loss.multiplier) ** 2)


def _distance(loss: SampledGaussian | ExchangedGaussian) -> float:
    """How far a sum moves at most, over what the multiplier counts in: were we always drawn, it would be a Gaussian."""
    return 2.0 if isinstance(loss, SampledGaussian) and (loss.replaced or loss.displacing) else 1.0


@functools.lru_cache(maxsize=4096)
def equivalent(loss: Loss, count: int, left: float) -> float:
    """The smallest mu (nearly) such that the releases' delta <= left + (1 - left) delta of mu, at every epsilon.

    Compared at epsilons >= 0, in both directions: those below follow by symmetry. Both sides fall with epsilon, so the
    left one is taken at the left end of each step and the right one at its right end.
    """
    whole = loss.pld(accounting.grid(loss.multiplier, _COARSE)).self_compose(count)
    safe = left - accounting.ROUNDING * count  # transforms round
    end = float(whole.get_epsilon_for_delta(safe / 2)) if safe > 0 else math.inf
    if not end < math.inf:
        return math.inf
    steps = np.linspace(0.0, end, _POINTS)
    given = np.minimum(np.asarray(whole.get_delta_for_epsilon(steps[:-1])) + accounting.ROUNDING * count, 1.0)
    low, high = 1e-9, 1e9
    while high > low * (1 + 1e-6):
        middle = math.sqrt(low * high)
        enough = np.all(given <= left + (1 - left) * _delta(middle, steps[1:]))
        low, high = (low, middle) if enough else (middle, high)
    return high


def _delta(mu: float, epsilons: np.ndarray) -> np.ndarray:
    """As `accounting.gaussian_delta`, of many epsilons."""
    upper = special.log_ndtr(mu / 2 - epsilons / mu)
    lower = epsilons + special.log_ndtr(-mu / 2 - epsilons / mu)
    difference: np.ndarray = -np.exp(upper) * np.expm1(np.minimum(0.0, lower - upper))
    return difference
