"""Privacy-loss distributions on a grid: the library's, with its loops over single losses as operations on arrays."""

import math
import sys
from collections.abc import Sequence

import numpy as np
from dp_accounting.pld import pld_pmf
from scipy import fft, signal

_FAR = 40.0  # the epsilon sought is never so far below the loss at which the mass exceeds delta
_UNDERFLOW = 745.0  # e to the power of minus it is zero
_ORDERS = 20  # of moments, in both directions
_ROUNDING = 1e-12  # more than the logarithms of moments are off by


class GridPmf(pld_pmf.DensePLDPmf):  # type: ignore[misc]
    """The probabilities of losses `first`, `first` + 1, ... times `grid`, and of an infinite one; rounded upwards."""

    def __init__(self, grid: float, first: int, probabilities: np.ndarray, infinite: float) -> None:
        super().__init__(grid, first, probabilities, infinite, True)

    @classmethod
    def of(cls, pmf: pld_pmf.PLDPmf) -> "GridPmf":
        dense = pmf.to_dense_pmf()
        return cls(dense._discretization, dense._lower_loss, dense._probs, dense._infinity_mass)

    @classmethod
    def connected(cls, grid: float, first: int, deltas: np.ndarray) -> "GridPmf":
        """The pair whose profile runs through `deltas` at the grid's losses from `first` on, and above it in between.

        Doroshenko et al. 2022, algorithm 1.
        """
        if (np.diff(deltas) > _ROUNDING).any() or not 0 <= deltas.min() <= deltas.max() <= 1:
            raise ValueError("Expected deltas between 0 and 1 that do not grow with the loss.")
        deltas = np.minimum.accumulate(deltas)
        falls = np.concatenate([[(1 - deltas[0]) * -math.expm1(-grid)], -np.diff(deltas), [0.0]])
        # Of falls that hardly differ; as in the library, with e^grid times one of them, more digits would be lost.
        masses = (falls[:-1] - falls[1:]) / -math.expm1(-grid) + falls[1:]
        return cls(grid, first, np.maximum(masses, 0.0), float(deltas[-1]))

    def self_compose(self, num_times: int, tail_mass_truncation: float = 1e-15) -> "GridPmf":
        """The loss of so many releases; less than `tail_mass_truncation` lies outside of the range, and is infinite."""
        if num_times < 1:
            raise ValueError(f"Expected num_times={num_times} >= 1.")
        if num_times == 1:
            return self
        low, high = reach(self._probs, num_times, tail_mass_truncation)
        size = fft.next_fast_len(max(high - low + 1, self.size), real=True)
        whole = fft.irfft(_power(fft.rfft(self._probs, size), num_times), size)
        finite = math.log1p(-min(self._infinity_mass, 1 - 1e-16))
        infinite = tail_mass_truncation - math.expm1(num_times * finite)
        probabilities = np.roll(whole, -low)[: high - low + 1]  # the transform wraps around
        return GridPmf(self._discretization, self._lower_loss * num_times + low, probabilities, infinite)

    def compose(self, other: pld_pmf.DensePLDPmf, tail_mass_truncation: float = 0) -> "GridPmf":
        self.validate_composable(other)
        probabilities = signal.fftconvolve(self._probs, other._probs)
        infinite = self._infinity_mass + other._infinity_mass - self._infinity_mass * other._infinity_mass
        left, probabilities, right = truncated(probabilities, tail_mass_truncation / 2)
        first = self._lower_loss + other._lower_loss + left
        return GridPmf(self._discretization, first, probabilities, infinite + right)

    def get_epsilon_for_delta(self, delta: float) -> float:
        """The smallest epsilon >= 0 at which the divergence is at most delta.

        Between two losses it is U - e^epsilon L, with U the mass of the losses above and L its sum weighted by e^-loss.
        """
        if self._infinity_mass > delta:
            return math.inf
        losses = self._losses()[max(0, 1 - self._lower_loss) :][::-1]  # those above 0, the largest first
        masses = self._probs[self.size - len(losses) :][::-1]
        upper = np.cumsum(np.concatenate([[self._infinity_mass], masses]))[1:]
        if not (upper > delta).any():
            return 0.0
        # U is at most delta before this loss, so that epsilon is below it; and (U - delta) / L is no less than 1e-16.
        start = int(np.argmax(upper > delta))
        largest = float(losses[start])
        if largest > _UNDERFLOW:
            return largest
        lower = np.cumsum(masses * np.exp(np.minimum(largest - losses, _FAR)))
        with np.errstate(divide="ignore", invalid="ignore"):  # rounding may leave less mass than none
            epsilons = largest + np.log((upper[start:] - delta) / lower[start:])
        enough = epsilons >= np.append(losses[start + 1 :], 0.0)
        return float(epsilons[np.argmax(enough)]) if enough.any() else 0.0

    def get_delta_for_epsilon(self, epsilon: float | Sequence[float]) -> float | np.ndarray:
        """The divergence at one epsilon or at many, in any order."""
        if np.ndim(epsilon) == 0:
            delta: float = super().get_delta_for_epsilon(float(epsilon))  # type: ignore[arg-type]
            return delta
        epsilons, losses = np.minimum(epsilon, sys.float_info.max), self._losses()
        upper = np.cumsum(np.append(self._infinity_mass, self._probs[::-1]))[::-1]
        # L times e^loss, which cannot overflow: from each loss to the next one below it decays by e^-grid, rounded
        # downwards, so that what is subtracted is never too much.
        decay = math.nextafter(math.exp(-self._discretization), 0.0)
        lower = np.append(signal.lfilter([1.0], [1.0, -decay], self._probs[::-1])[::-1], 0.0)
        above = np.searchsorted(losses, epsilons, side="right")
        deltas: np.ndarray = upper[above] - np.exp(epsilons - np.append(losses, np.inf)[above]) * lower[above]
        return deltas

    def _losses(self) -> np.ndarray:
        losses: np.ndarray = np.arange(self._lower_loss, self._lower_loss + self.size) * self._discretization
        return losses


def reach(probabilities: np.ndarray, count: int, left: float) -> tuple[int, int]:
    """The indices between which all but `left` of the mass lies after `count` convolutions: Chernoff's bound."""
    low, high = 0, (len(probabilities) - 1) * count
    base = np.exp(np.arange(len(probabilities)) / len(probabilities))
    for sign, factor in ((1, base), (-1, 1 / base)):
        weighted = probabilities.copy()
        for order in range(1, _ORDERS + 1):
            weighted *= factor  # at most e^20
            moment = float(weighted.sum())
            if moment <= 0:
                continue
            far = (count * (math.log(moment) + _ROUNDING) + math.log(2 / left)) * len(probabilities) / order
            low, high = (low, min(high, math.ceil(far))) if sign > 0 else (max(low, math.floor(-far)), high)
    return low, max(low, high)


def truncated(probabilities: np.ndarray, left: float) -> tuple[int, np.ndarray, float]:
    """Without its ends, each of a mass up to `left`: how many are gone below, what stays, the mass gone above.

    The mass gone below is added to the smallest loss that stays.
    """
    if not left:
        return 0, probabilities, 0.0
    start = _prefix(probabilities, left)
    end = max(len(probabilities) - _prefix(probabilities[::-1], left), start + 1)
    stays = probabilities[start:end].copy()
    stays[0] += probabilities[:start].sum()
    return start, stays, float(probabilities[end:].sum())


def _prefix(probabilities: np.ndarray, left: float) -> int:
    """How many from the start on have a mass of no more than `left`; one stays at least."""
    over = np.cumsum(probabilities) > left
    return int(np.argmax(over)) if over.any() else len(over) - 1


def _power(transform: np.ndarray, count: int) -> np.ndarray:
    """By squaring: many times as fast as numpy's power of complex numbers, and no less accurate."""
    whole = None
    while count:
        if count & 1:
            whole = transform.copy() if whole is None else whole * transform
        count >>= 1
        if count:
            transform = transform * transform
    assert whole is not None
    return whole
