"""Noisy histograms."""

import numpy as np


def nearest(noisy: np.ndarray, total: float) -> np.ndarray:
    """The Euclidean projection onto the histograms with this total: one amount off every bin, then no negatives.

    >>> nearest(np.array([0.6, 0.2, -0.1, 0.3]), 1.0).round(3).tolist()
    [0.567, 0.167, 0.0, 0.267]
    """
    falling = np.sort(noisy)[::-1]
    excess = (np.cumsum(falling) - total) / np.arange(1, len(noisy) + 1)
    projected: np.ndarray = np.maximum(noisy - excess[np.flatnonzero(falling >= excess)[-1]], 0.0)
    return projected
