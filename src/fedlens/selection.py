"""PRIVATE. Which users and examples a model is trained on. A verdict reads one user's data and public models only."""

import dataclasses

import torch

from fedlens.models.classifier import Primary
from fedlens.population import Population
from fedlens.trees import Tree, pixels


@dataclasses.dataclass(frozen=True, kw_only=True)
class AccuracyBetween:
    """T4: users on whose own examples the primary model is right with a share in [at_least, below)."""

    at_least: float = 0.0
    below: float = float("inf")

    def __call__(self, population: Population, name: str, primary: Primary) -> Population:
        def verdict(user: Tree) -> bool:
            share = float(_right(user, primary).float().mean()) if len(user["y"]) else -1.0
            return self.at_least <= share < self.below

        return population.select(name, users=verdict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classified:
    """T2: the examples the primary model gets right, or wrong, of users with at least `minimum` of them."""

    right: bool
    minimum: int = 5

    def __call__(self, population: Population, name: str, primary: Primary) -> Population:
        return population.select(name, examples=lambda user: _right(user, primary) == self.right, at_least=self.minimum)


def _right(user: Tree, primary: Primary) -> torch.Tensor:
    return primary.predictions(pixels(user["x"])) == user["y"]
