"""PRIVATE. Which users and examples a model is trained on. A verdict reads one user's data and public models only.

Thresholds are public: constants, or quantiles of the users' accuracies read from a noisy histogram that was paid for.
"""

import dataclasses
from collections.abc import Iterable

import numpy as np
import torch

from fedlens.core.trees import Tree
from fedlens.data.population import DataError, Population
from fedlens.models.classifier import Primary
from fedlens.models.primary import check_unchanged

_SLICE = 1024  # images


def accuracies(population: Population, primary: Primary) -> np.ndarray:
    """PRIVATE. The share of each user's own examples that the primary model gets right; -1 for users without any.

    Asked once for all groups: a model that answers differently the next time could put a user into two of them, which
    are priced as if they shared nobody.
    """
    users = population.only("x", "y")
    own = (users.unit(unit) for unit in range(len(users)))
    shares = np.array([accuracy(user, primary) if len(user["y"]) else -1.0 for user in own])
    check_unchanged(primary)
    return shares


@dataclasses.dataclass(frozen=True, kw_only=True)
class AccuracyBetween:
    """T4: users on whose own examples the primary model is right with a share in [at_least, below)."""

    at_least: float = 0.0
    below: float = float("inf")

    def __call__(self, population: Population, name: str, shares: np.ndarray) -> Population:
        return population.chosen(name, (shares >= max(0.0, self.at_least)) & (shares < self.below))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classified:
    """T2: the examples the primary model gets right, or wrong, of users with at least `minimum` of them."""

    right: bool
    minimum: int = 5

    def __call__(self, population: Population, name: str, primary: Primary) -> Population:
        def verdict(user: Tree) -> torch.Tensor:
            return _right(user, primary) == self.right

        chosen = population.select(name, examples=verdict, at_least=self.minimum, shown=("x", "y"))
        check_unchanged(primary)
        return chosen


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfClasses:
    """The examples whose label is one of `classes`, of users with at least `minimum` of them."""

    classes: tuple[int, ...]
    minimum: int = 5

    def __call__(self, population: Population, name: str) -> Population:
        wanted = torch.tensor(self.classes)
        return population.select(
            name, examples=lambda user: torch.isin(user["y"].long(), wanted), at_least=self.minimum, shown=("y",)
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class WithAttribute:
    """Users all of whose examples carry one of `values` in the column `attribute`: disjoint values share no user."""

    attribute: str
    values: tuple[int, ...]

    def __call__(self, population: Population, name: str) -> Population:
        column = population.only(self.attribute).columns[self.attribute]
        if column.ndim != 1 or column.dtype.kind not in "iu":
            raise DataError(f"Expected one whole number per row in {self.attribute}, got {column.dtype}.")

        def verdict(user: Tree) -> bool:
            held = user[self.attribute].long()
            return len(held) > 0 and bool(torch.isin(held, torch.tensor(self.values)).all())

        return population.select(name, users=verdict, shown=(self.attribute,))


@dataclasses.dataclass(frozen=True, kw_only=True)
class AccuracyHistogram:
    """What users contribute where thresholds are learnt: a one in the bin of their own accuracy, of norm 1."""

    bins: int = 25

    def contribution(self, message: Tree, examples: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """Who has no examples, and so an accuracy of -1, contributes zeros."""
        share, there = examples["accuracy"][0], examples["mask"][0] > 0
        place = (share * self.bins).long().clamp(0, self.bins - 1)
        users = (torch.arange(self.bins, device=place.device) == place).float()
        return {"users": users * (there & (share >= 0))}, memory


def quantiles(histogram: torch.Tensor, wanted: Iterable[float]) -> dict[float, float]:
    """Quantiles of what lies in [0, 1], from a noisy histogram of it; a larger one never lies below a smaller one.

    Cutting negative bins to zero would leave the noise of the others, and shift quantiles towards the empty end. So
    the histogram is replaced by the nearest one that has no negative bin and the same total.

    >>> quantiles(torch.tensor([0.0, 0.0, 10.0, 30.0]), [0.75, 0.25])
    {0.25: 0.75, 0.75: 0.916667}
    """
    bins = _nearest_histogram(histogram.double().numpy())
    levels, reached = sorted(set(wanted)), np.concatenate([[0.0], np.cumsum(bins)])
    values = np.interp(np.multiply(levels, reached[-1]), reached, np.linspace(0, 1, len(reached)))
    return dict(zip(levels, np.maximum.accumulate(values.round(6)).tolist(), strict=True))


def accuracy(user: Tree, primary: Primary) -> float:
    """The share of a user's examples that the primary model gets right."""
    return float(_right(user, primary).double().mean())


def _right(user: Tree, primary: Primary) -> torch.Tensor:
    """Written in place, slice by slice: small answers kept between large intermediates would tear memory to pieces."""
    right = torch.empty(len(user["y"]), dtype=torch.bool)
    for into, x, y in zip(right.split(_SLICE), user["x"].split(_SLICE), user["y"].split(_SLICE), strict=True):
        torch.eq(primary.predictions(x), y, out=into)
    return right


def _nearest_histogram(noisy: np.ndarray) -> np.ndarray:
    """The Euclidean projection onto the histograms with the same total: one amount off every bin, then no negatives."""
    falling = np.sort(noisy)[::-1]
    excess = (np.cumsum(falling) - max(noisy.sum(), 0.0)) / np.arange(1, len(noisy) + 1)
    return np.maximum(noisy - excess[np.flatnonzero(falling >= excess)[-1]], 0.0)
