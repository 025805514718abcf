"""Renyi accounting: looser than privacy-loss distributions, kept as a second reading and to reproduce papers."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedlens.privacy.losses import ExchangedGaussian, Gaussian, Loss, SampledGaussian

ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(11, 64), 128, 256, 512, 1024)  # dp-accounting's
TF_PRIVACY_ORDERS = (1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5, *range(5, 64), 128, 256, 512)
WHOLE_ORDERS = tuple(range(2, 65))
Conversion = Callable[[np.ndarray, np.ndarray, float], np.ndarray]  # (rdp, orders, delta) -> an epsilon for every order


def classic(rdp: np.ndarray, orders: np.ndarray, delta: float) -> np.ndarray:
    """Mironov 2017, proposition 3."""
    epsilons: np.ndarray = rdp + np.log(1 / delta) / (orders - 1)
    return epsilons


def improved(rdp: np.ndarray, orders: np.ndarray, delta: float) -> np.ndarray:
    """Canonne, Kamath, Steinke 2020, proposition 12; never above `classic`."""
    epsilons: np.ndarray = np.maximum(0.0, rdp + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1))
    return epsilons


def of(loss: Loss, orders: Sequence[float]) -> np.ndarray:
    """The Renyi divergences of one release.

    The library's REPLACE_ONE takes its multiplier over the distance between neighbours, unlike its PLD accountant,
    which doubles by itself; a `Loss` carries that distance already.
    """
    if isinstance(loss, Gaussian):
        return np.asarray(orders, dtype=float) / (2 * loss.multiplier**2)
    from dp_accounting import NeighboringRelation, dp_event
    from dp_accounting.rdp import RdpAccountant

    gaussian = dp_event.GaussianDpEvent(loss.multiplier)
    if isinstance(loss, ExchangedGaussian):  # Wang, Balle, Kasiviswanathan 2019, theorem 9
        kind = NeighboringRelation.REPLACE_ONE
        event = dp_event.SampledWithoutReplacementDpEvent(loss.population, loss.size, gaussian)
    elif isinstance(loss, SampledGaussian) and loss.cap is None and not loss.replaced:
        kind, event = NeighboringRelation.ADD_OR_REMOVE_ONE, dp_event.PoissonSampledDpEvent(loss.rate, gaussian)
    else:
        raise ValueError("Expected sampling without a cap, and add/remove neighbours: no other has a Renyi bound here.")
    return np.asarray(RdpAccountant(orders, kind).compose(event).rdp)


def epsilon(
    suffered: Mapping[Loss, int], delta: float, conversion: Conversion = improved, orders: Sequence[float] = ORDERS
) -> float:
    """The epsilon of losses, each suffered so many times.

    Formal guarantee: an upper bound on the true epsilon, whichever the orders and the conversion.
    """
    if not 0 < delta < 1:
        raise ValueError(f"Expected 0 < delta={delta} < 1.")
    total = np.sum([count * of(loss, orders) for loss, count in suffered.items()], axis=0)
    return float(np.min(conversion(total, np.asarray(orders, dtype=float), delta)))
