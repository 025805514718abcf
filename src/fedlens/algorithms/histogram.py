"""How well a model does on whom: a noisy histogram of the users' accuracies, and the quantiles read from it."""

import dataclasses
from collections.abc import Iterable
from typing import ClassVar

import numpy as np
import torch

from fedlens.algorithms.protocol import OneRelease
from fedlens.core import histograms
from fedlens.core.trees import Tree


@dataclasses.dataclass(frozen=True, kw_only=True)
class AccuracyHistogram(OneRelease):
    """What users contribute where thresholds are learnt: a one in the bin of their own accuracy, of norm 1.

    Examples: `accuracy`, one of each user. Pairs with a bound of norm 1, one release and one expected contributor.
    """

    bins: int = 25

    name: ClassVar[str] = "accuracy-histogram"
    examples_per_unit: ClassVar[int] = 1

    def contribute(self, message: Tree, examples: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """Who has no examples, and so an accuracy of -1, contributes zeros."""
        share, there = examples["accuracy"][0], examples["mask"][0] > 0
        place = (share * self.bins).long().clamp(0, self.bins - 1)
        users = (torch.arange(self.bins, device=place.device) == place).float()
        return {"users": users * (there & (share >= 0))}, memory

    def start(self) -> Tree:
        return {"users": torch.zeros(self.bins), "round": torch.tensor(0)}

    def result(self, state: Tree) -> torch.Tensor:
        """The noisy histogram: `quantiles` reads it."""
        return state["users"]


def quantiles(histogram: torch.Tensor, wanted: Iterable[float]) -> dict[float, float]:
    """Quantiles of what lies in [0, 1], from a noisy histogram of it; a larger one never lies below a smaller one.

    Cutting negative bins to zero would leave the noise of the others, and shift quantiles towards the empty end. So
    the histogram is replaced by the nearest one that has no negative bin and the same total.

    >>> quantiles(torch.tensor([0.0, 0.0, 10.0, 30.0]), [0.75, 0.25])
    {0.25: 0.75, 0.75: 0.916667}
    """
    noisy = histogram.double().numpy()
    bins = histograms.nearest(noisy, max(noisy.sum(), 0.0))
    levels, reached = sorted(set(wanted)), np.concatenate([[0.0], np.cumsum(bins)])
    values = np.interp(np.multiply(levels, reached[-1]), reached, np.linspace(0, 1, len(reached)))
    return dict(zip(levels, np.maximum.accumulate(values.round(6)).tolist(), strict=True))
