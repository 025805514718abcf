"""Bayesian differential privacy (BDP): a second reading of a run, always an estimate, never a budget.

Triastcyn and Faltings 2022, "Generating Higher-Fidelity Synthetic Datasets with Privacy Guarantees". BDP averages over
the unit that joins: whoever is unlike the others, and needs protection most, is averaged away. It is read from private
distances without noise, along the one path that training took; the reading itself is not private.

A unit at distance d, in deviations of the noise, has a log moment a(d) = ln E_{k ~ Bin(l + 1, rate)} e^((k^2-k) d^2/2)
of order l, and a step costs ln(E e^(T a(d))) / T where T steps are planned (Hoelder). That mean is only ever sampled.
As published, Student's t bounds it, as though e^(T a), which one unit in a million can dominate, were normal.
Corrected, the bound holds for any law of distances up to a public `largest`. From m pairs, none of them large, it is
about a(largest) - ln(m / ln(1 / failure)) / T: the worst case, unless m is huge. No valid bound can do much better.
"""

import dataclasses
import math
import warnings

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

AS_PUBLISHED, CORRECTED = "as published", "corrected"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BayesianEstimate:
    """What the Bayesian accountant reads, and at which order; it unlocks nothing."""

    epsilon: float
    delta: float
    order: int
    method: str

    @property
    def headline(self) -> str:
        size = f"{math.ceil(self.epsilon * 100 - 1e-9) / 100:.2f}" if math.isfinite(self.epsilon) else "INFINITE"
        reading = f"epsilon {size} at delta {self.delta:g} on average over the data"
        return f"Bayesian DP estimate ({self.method}), not a privacy guarantee: {reading}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BayesianAccountant:
    """Prices distances between sums that differ in one unit; naming the `largest` corrects what was published.

    Formal guarantee: none. Corrected, no step's mean is underestimated at any order, except with probability
    steps * failure (which delta pays for), if `largest` bounds every distance whatever the data (for add/remove
    neighbours: the norm of the clip) and the pairs of a step are independent draws of units that were not trained on.

    >>> published = BayesianAccountant(rate=0.01, steps=1000)
    >>> corrected = dataclasses.replace(published, largest=1.0)
    >>> for accountant in (published, corrected):
    ...     costs = [accountant.cost([0.1, 0.2, 0.1, 0.3], stddev=1.0)] * 1000
    ...     print(accountant.epsilon(costs, delta=1e-5).headline)
    Bayesian DP estimate (as published), not a privacy guarantee: epsilon 0.86 at delta 1e-05 on average over the data
    Bayesian DP estimate (corrected), not a privacy guarantee: epsilon 3.23 at delta 1e-05 on average over the data
    """

    rate: float
    steps: int  # planned, and the Hoelder exponent; fewer may be taken, more may not
    orders: tuple[int, ...] = (2, 4, 8, 16, 32)
    failure: float = 2.0**-53  # per step: what the published confidence of 1 - 1e-16 is in double precision
    largest: float | None = None  # in the unit of the distances; without it the estimate is the published one

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"Expected 0 < rate={self.rate} <= 1.")
        if self.steps < 1:
            raise ValueError(f"Expected steps={self.steps} >= 1.")
        if not self.orders or any(order < 1 or order != int(order) for order in self.orders):
            raise ValueError(f"Expected orders={self.orders} to be whole numbers >= 1.")
        if not 0 < self.failure < 0.5:
            raise ValueError(f"Expected 0 < failure={self.failure} < 0.5.")
        if self.largest is not None and not 0 < self.largest < math.inf:
            raise ValueError(f"Expected largest={self.largest} > 0 and finite.")

    @property
    def method(self) -> str:
        return AS_PUBLISHED if self.largest is None else CORRECTED

    @property
    def charge(self) -> float:
        """How likely some step fails: as published for independent failures, corrected to a union bound."""
        together = self.steps * self.failure
        return -math.expm1(self.steps * math.log1p(-self.failure)) if self.largest is None else together

    def cost(self, distances: npt.ArrayLike, stddev: float) -> np.ndarray:
        """What one step costs at each order; distances and the noise's `stddev` are in the same unit."""
        if not 0 < stddev < math.inf:
            raise ValueError(f"Expected stddev={stddev} > 0 and finite.")
        sampled = self._checked(np.asarray(distances, float)) / stddev
        largest = None if self.largest is None else np.array([self.largest / stddev])
        return np.array([self._bound(sampled, largest, order) for order in self.orders]) / self.steps

    def epsilon(self, costs: npt.ArrayLike, delta: float) -> BayesianEstimate:
        """The epsilon at `delta` of steps with these `costs`, one row each; infinite if the charge exceeds delta."""
        if not 0 < delta < 1:
            raise ValueError(f"Expected 0 < delta={delta} < 1.")
        log_room = math.log(delta - self.charge) if delta > self.charge else -math.inf
        each = (self._total(costs) - log_room) / np.array(self.orders)
        best = int(each.argmin())
        return BayesianEstimate(epsilon=each[best].item(), delta=delta, order=self.orders[best], method=self.method)

    def delta(self, costs: npt.ArrayLike, epsilon: float) -> BayesianEstimate:
        """The delta at `epsilon`; as published it forgets the charge, corrected it does not."""
        if not epsilon >= 0:
            raise ValueError(f"Expected epsilon={epsilon} >= 0.")
        logs = self._total(costs) - np.array(self.orders) * epsilon
        best = int(logs.argmin())
        delta = math.exp(min(0.0, logs[best])) + (0.0 if self.largest is None else self.charge)
        return BayesianEstimate(epsilon=epsilon, delta=min(1.0, delta), order=self.orders[best], method=self.method)

    def _bound(self, sampled: np.ndarray, largest: np.ndarray | None, order: int) -> float:
        logs = self.steps * log_moment(sampled, order, self.rate)
        if largest is None:
            return student_bound(logs, self.failure)
        top = self.steps * log_moment(largest, order, self.rate).item()
        # The best order is chosen after looking: all of them must hold at once.
        return chernoff_bound(logs, top, self.failure / len(self.orders))

    def _checked(self, distances: np.ndarray) -> np.ndarray:
        if distances.ndim != 1 or len(distances) < 3 or not (np.isfinite(distances) & (distances >= 0)).all():
            raise ValueError(f"Expected a row of 3 or more finite distances >= 0, got {distances}.")
        largest = math.inf if self.largest is None else self.largest
        if distances.max() > largest * (1 + 1e-6):  # single precision leaves a clipped norm a little over its bound
            raise ValueError(f"Expected distances up to largest={largest}, got {distances.max()}.")
        clipped: np.ndarray = np.minimum(distances, largest)
        return clipped

    def _total(self, costs: npt.ArrayLike) -> np.ndarray:
        rows = np.atleast_2d(np.asarray(costs, float))
        if len(rows) > self.steps or rows.shape[1:] != (len(self.orders),) or not (rows >= 0).all():
            wanted = f"at most {self.steps} rows of {len(self.orders)} costs >= 0"
            raise ValueError(f"Expected {wanted}, got shape {rows.shape} and least cost {rows.min(initial=0.0)}.")
        total: np.ndarray = rows.sum(axis=0)
        return total


def log_moment(distances: np.ndarray, order: int, rate: float) -> np.ndarray:
    """`order` times the Renyi divergence of `order + 1` of a Poisson-sampled Gaussian, distances in its deviations.

    The other direction, the paper's eq. 7, is never larger for Gaussians (Mironov, Talwar and Zhang 2019).
    """
    joins = np.arange(2, order + 2)  # k = 0 and 1 add just their probability: small costs keep all their digits
    log_odds = np.log(special.comb(order + 1, joins)) + special.xlogy(joins, rate)
    log_odds += special.xlog1py(order + 1 - joins, -rate)
    gains = log_odds + _log_expm1(np.multiply.outer(distances**2, joins * (joins - 1) / 2))
    log_moments: np.ndarray = np.logaddexp(0.0, special.logsumexp(gains, axis=-1))
    return log_moments


def student_bound(logs: np.ndarray, failure: float) -> float:
    """ln of (mean + t sd / sqrt(n - 1)) of exp(logs), sd with divisor n: the published estimator, not a valid bound."""
    peak, degrees = logs.max().item(), len(logs) - 1
    below = np.expm1(logs - peak)
    if not (spread := below.std().item()):
        warnings.warn("Equal distances: the published estimate drops its penalty, and is less reliable.", stacklevel=2)
    penalty = -special.stdtrit(degrees, failure) * spread / math.sqrt(degrees)
    return float(peak) + math.log1p(below.mean() + penalty)


def chernoff_bound(logs: np.ndarray, top: float, failure: float) -> float:
    """ln of an upper bound on E exp(logs), for independent logs that share one law between 0 and `top`.

    Formal guarantee: too low with probability at most `failure`, whatever the law. Hoeffding 1963, Theorem 1: m shares
    in [0, 1] of mean p average to some s < p with kl(s, p) >= r with probability at most exp(-m r). If all logs are 0,
    p <= 1 - failure^(1/m); a weight that large at `top` goes unseen that often, so no valid bound is lower.
    """
    if top == 0:
        return 0.0
    scale = _log_expm1(np.array(top)).item()
    average = min(1.0, np.exp(_log_expm1(logs) - scale).mean().item())  # may underflow; the largest share does not
    share = _largest_share(average, -math.log(failure) / len(logs))
    return min(top, float(np.logaddexp(0.0, math.log(share) + scale)))


def _largest_share(average: float, divergence: float) -> float:
    """The largest p with kl(average, p) <= divergence."""

    def excess(p: float) -> float:
        return float(special.rel_entr(average, p) + special.rel_entr(1 - average, 1 - p)) - divergence

    almost = 1 - 2.0**-53
    if excess(almost) <= 0:
        return 1.0
    root = float(optimize.brentq(excess, average, almost, xtol=1e-300, rtol=1e-12))
    return min(1.0, root * (1 + 1e-9))  # never under the root that was sought


def _log_expm1(logs: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):  # zero goes to minus infinity, as it should
        result: np.ndarray = logs + np.log(-np.expm1(-logs))
    return result
