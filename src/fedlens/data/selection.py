"""PRIVATE. Which users and examples a model is trained on. A verdict reads one user's data and public models only.

Thresholds are public: constants, or quantiles of the users' accuracies read from a noisy histogram that was paid for
(`algorithms.histogram`).
"""

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


def with_accuracy(population: Population, name: str, shares: np.ndarray, at_least: float, below: float) -> Population:
    """T4: users on whose own examples the primary model is right with a share in [at_least, below)."""
    return population.chosen(name, (shares >= max(0.0, at_least)) & (shares < below))


def classified(
    population: Population, name: str, primary: Primary, right: bool, minimum: int, alone: bool = False
) -> Population:
    """T2: the examples the primary model gets right, or wrong, of users with at least `minimum` of them.

    Each is judged `alone` where examples are protected: a program may let one decide about its batch, and so may
    weights of a modeler's own in a network of ours, which rounds otherwise in batches of other sizes.
    """
    together = 1 if alone else _SLICE
    chosen = population.select(
        name, examples=lambda user: _right(user, primary, together) == right, at_least=minimum, shown=("x", "y")
    )
    check_unchanged(primary)
    return chosen


def predicted(population: Population, primary: Primary, alone: bool) -> np.ndarray:
    """PRIVATE. What the primary model takes each example for; each is judged `alone`, or with others of its user."""
    images, answers = population.columns["x"], np.full(len(population.columns["x"]), -1, np.int64)
    together = 1 if alone else _SLICE
    for start, count in zip(population.starts, population.counts, strict=True):
        for at in range(start, start + count, together):
            rows = slice(at, min(at + together, start + count))
            answers[rows] = primary.predictions(torch.from_numpy(np.array(images[rows]))).numpy()
    check_unchanged(primary)
    return answers


def of_classes(population: Population, name: str, classes: tuple[int, ...], minimum: int) -> Population:
    """The examples whose label is one of `classes`, of users with at least `minimum` of them."""
    wanted = torch.tensor(classes)
    return population.select(
        name, examples=lambda user: torch.isin(user["y"].long(), wanted), at_least=minimum, shown=("y",)
    )


def with_attribute(population: Population, name: str, attribute: str, values: tuple[int, ...]) -> Population:
    """Users all of whose examples carry one of `values` in the column `attribute`: disjoint values share no user."""
    column = population.only(attribute).columns[attribute]
    if column.ndim != 1 or column.dtype.kind not in "iu":
        raise DataError(f"Expected one whole number per row in {attribute}, got {column.dtype}.")

    def verdict(user: Tree) -> bool:
        held = user[attribute].long()
        return len(held) > 0 and bool(torch.isin(held, torch.tensor(values)).all())

    return population.select(name, users=verdict, shown=(attribute,))


def accuracy(user: Tree, primary: Primary) -> float:
    """The share of a user's examples that the primary model gets right."""
    return float(_right(user, primary, _SLICE).double().mean())


def _right(user: Tree, primary: Primary, together: int) -> torch.Tensor:
    """Written in place, slice by slice: small answers kept between large intermediates would tear memory to pieces."""
    right = torch.empty(len(user["y"]), dtype=torch.bool)
    for into, x, y in zip(*(rows.split(together) for rows in (right, user["x"], user["y"])), strict=True):
        torch.eq(primary.predictions(x), y, out=into)
    return right
