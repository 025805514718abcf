"""Optimizers as pure functions on trees: the server's step on a noisy mean, the generator's on its gradient."""

import dataclasses

import torch

from fedlens.core import trees
from fedlens.core.trees import Tree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sgd:
    """
    >>> step = Sgd(rate=0.5)
    >>> step({"w": torch.ones(1)}, {"w": torch.ones(1)}, step.init({"w": torch.ones(1)}))[0]["w"]
    tensor([0.5000])
    """

    rate: float
    momentum: float = 0.0
    nesterov: bool = False

    def init(self, params: Tree) -> Tree:
        return trees.joined(velocity=trees.zeros(params)) if self.momentum else {}

    def __call__(self, params: Tree, gradient: Tree, slots: Tree) -> tuple[Tree, Tree]:
        if not self.momentum:
            return trees.add(params, gradient, -self.rate), {}
        velocity = trees.add(gradient, trees.part(slots, "velocity"), self.momentum)
        step = trees.add(gradient, velocity, self.momentum) if self.nesterov else velocity
        return trees.add(params, step, -self.rate), trees.joined(velocity=velocity)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adam:
    rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def init(self, params: Tree) -> Tree:
        return trees.joined(first=trees.zeros(params), second=trees.zeros(params), steps=torch.zeros(()))

    def __call__(self, params: Tree, gradient: Tree, slots: Tree) -> tuple[Tree, Tree]:
        steps = slots["steps"] + 1
        first = {k: m.lerp(gradient[k], 1 - self.beta1) for k, m in trees.part(slots, "first").items()}
        second = {k: v.lerp(gradient[k].square(), 1 - self.beta2) for k, v in trees.part(slots, "second").items()}
        rate, wide = self.rate / (1 - self.beta1**steps), (1 - self.beta2**steps).sqrt()
        moved = {k: p - rate * first[k] / (second[k].sqrt() / wide + self.epsilon) for k, p in params.items()}
        return moved, trees.joined(first=first, second=second, steps=steps)
